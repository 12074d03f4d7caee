"""One rank's critic: `critic_lab.py FOLDER`, by torchrun. What is in FOLDER, see `test_rank_states.py`. Needs no DeepSpeed."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from gradbus.spec import RunSpec
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.body import own_body
from gradbus_trainer.learners.critic.critic import Critic
from gradbus_trainer.learners.critic.states import ModelStates
from gradbus_trainer.learners.deepspeed.commands import batch_of
from gradbus_trainer.learners.deepspeed.policy import Policy, hidden_states
from gradbus_trainer.learners.deepspeed.rank_states import RankStates
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.settings import TorchrunRank


def critic_of(spec, folder, ranks):
    settings = spec.trainer.critic
    if settings.kind == "head":
        policy = Policy(load_causal_lm(folder, torch.float32, "cpu"))
        return Critic(
            spec, settings, RankStates(spec, ranks, policy.head.weight.shape[1], lambda rows: policy(rows, ranks.device, hidden_states))
        )
    own = ModelStates(own_body(folder, spec, settings, ranks.device), spec.trainer.micro_batch_tokens)
    return Critic(spec, settings, RankStates(spec, ranks, own.width, own))


def main():
    folder, torchrun = Path(sys.argv[1]), TorchrunRank.of(os.environ)
    spec = RunSpec.model_validate_json((folder / "spec.json").read_text())
    ranks = Ranks(torchrun, "cpu", 60.0)
    critic, advantages, told = critic_of(spec, Path((folder / "model").read_text()), ranks), {}, []
    for step in range(len(list(folder.glob("*.batch")))):
        batch = batch_of(step, load_file(folder / f"{step}.batch"))

        def keep(given, step=step):
            advantages[f"advantages.{step}"] = torch.from_numpy(np.concatenate([row.advantages for row in given.samples]))
            return StepMetrics(noop=False, learning_rate=0.0, updates=1)

        told.append(asdict(critic.train(batch, StepMetrics(noop=True, learning_rate=0.0), keep).critic))
    save_file({**critic.tensors(), **advantages}, folder / f"rank-{torchrun.rank}.tensors")
    (folder / f"rank-{torchrun.rank}.json").write_text(json.dumps(told))
    ranks.close()


if __name__ == "__main__":
    main()

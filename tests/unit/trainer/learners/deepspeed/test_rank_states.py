"""A critic on several ranks: all have the same bits, which are those of one process up to the order of sums."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gradbus.algorithms import SampleMarks
from gradbus_kernels.models.causal_lm import load_causal_lm
from gradbus_trainer.learners.base import StepMetrics
from gradbus_trainer.learners.critic.body import open_body
from gradbus_trainer.learners.critic.critic import Critic
from gradbus_trainer.learners.critic.states import ModelStates
from gradbus_trainer.learners.deepspeed.commands import batch_tensors
from gradbus_trainer.step.batch import Batch

LAB = Path(__file__).with_name("critic_lab.py")
STEPS = 3


@pytest.fixture
def batches(make_batch, split):
    """With rewards, of which some come before the end, forks, and samples that were cut off."""

    def make(step):
        samples = [replace(sample, marks=SampleMarks(cut_off=at % 5 == 1)) for at, sample in enumerate(make_batch(step, seed=step).samples)]
        return Batch(step, [*samples[:8], *split(samples[8:])])

    return [make(step) for step in range(STEPS)]


def plain(spec, folder, batches):
    """What one process computes."""
    model = load_causal_lm(folder, torch.float32, "cpu")
    critic = Critic(spec, spec.trainer.critic, ModelStates(open_body(folder, spec, spec.trainer.critic, model), 8192))
    found, told = {}, []
    for batch in batches:

        def keep(given, step=batch.step):
            found[f"advantages.{step}"] = torch.from_numpy(np.concatenate([row.advantages for row in given.samples]))
            return StepMetrics(noop=False, learning_rate=0.0, updates=1)

        told.append(critic.train(batch, StepMetrics(noop=True, learning_rate=0.0), keep).critic)
    return {**critic.tensors(), **found}, told


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "critic"),
    [
        (2, {"kind": "head", "updates": 2, "learning_rate": 1e-2}),
        pytest.param(2, {"kind": "full", "freeze": "attention", "warmup_steps": 1, "length_alpha": 0.3}, marks=pytest.mark.slow),
        pytest.param(3, {"kind": "lora", "updates": 2, "learning_rate": 1e-2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_ranks_agree_with_each_other_and_with_one_process(make_spec, model_folder, batches, tmp_path, ranks, critic):
    spec = make_spec(algorithm={"name": "ppo", "truncated": "bootstrap"}, trainer={"critic": critic, "micro_batch_tokens": 20})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    (tmp_path / "model").write_text(str(model_folder))
    for batch in batches:
        save_file(batch_tensors(batch), tmp_path / f"{batch.step}.batch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run([*torchrun, str(LAB), str(tmp_path)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    expected, told = plain(spec, model_folder, batches)
    first = load_file(tmp_path / "rank-0.tensors")
    for rank in range(1, ranks):
        other = load_file(tmp_path / f"rank-{rank}.tensors")
        assert first.keys() == other.keys()
        assert [name for name in first if not torch.equal(first[name], other[name])] == []
    assert first.keys() == expected.keys()
    for name, tensor in first.items():
        # Moments, which are means of gradients, by their size; weights by a part of one update too, because AdamW divides by small numbers.
        bound = 1e-4 * max(float(expected[name].abs().max()), 1e-3)
        bound = bound if ".exp_avg" in name else max(bound, 1e-2 * spec.trainer.critic.learning_rate)
        torch.testing.assert_close(tensor, expected[name], rtol=0.0, atol=bound, msg=lambda text, name=name: f"{name}: {text}")
    for one, other in zip(json.loads((tmp_path / "rank-0.json").read_text()), told, strict=True):
        assert list(one.values()) == pytest.approx([other.loss, other.explained_variance, other.grad_norm], rel=2e-5, abs=2e-6)

"""Part 7: DeepSpeed with one rank on the device, every ZeRO stage beside plain torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

import torch

from gpu_check.context import Context, SkipPartError
from gpu_check.parts.trainer import spec
from gpu_check.random_models import TINY, Config, batch, write_model
from gpu_check.timing import wall
from gradbus.spec import DeepSpeedSpec, RunSpec
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.settings import TorchrunRank, choose_accelerator

_STEPS: Final = 4
_RELATIVE: Final = 2e-5
_MEDIUM: Final[Config] = TINY | {"vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12}
"""150 million parameters: large enough for a step to be more than its launches."""


def run(context: Context) -> None:
    """Weights after four steps in float32, then the seconds of a step in bfloat16."""
    if find_spec("deepspeed") is None:
        raise SkipPartError("DeepSpeed is not installed in this Python; install gradbus[trainer-deepspeed] to check it")
    choose_accelerator(context.device)
    from gradbus_trainer.learners.deepspeed.leader import Leader  # noqa: PLC0415 -- imports DeepSpeed
    from gradbus_trainer.learners.deepspeed.learner import DeepSpeedLearner  # noqa: PLC0415
    from gradbus_trainer.learners.deepspeed.ranks import Ranks  # noqa: PLC0415

    leader = Leader(Ranks(TorchrunRank(), context.device, 30.0), 30.0)
    tiny = write_model(context.folder / "tiny", TINY, context.device)
    plain = _trained(TorchLearner(tiny, spec(), context.device), TINY)
    for stage in range(4):
        found = _trained(DeepSpeedLearner(tiny, _staged(spec(), stage), leader), TINY)
        apart = max(float((found[name] - plain[name]).norm() / plain[name].norm()) for name in plain)
        context.correct(f"ZeRO {stage}: weights beside plain torch's, relative", apart, _RELATIVE)
    if context.dry:
        return
    folder = write_model(context.folder / "medium", _MEDIUM, context.device, torch.bfloat16)
    seconds = _step_seconds(context, TorchLearner(folder, spec("bf16"), context.device))
    for stage in range(1, 4):
        took = _step_seconds(context, DeepSpeedLearner(folder, _staged(spec("bf16"), stage), leader))
        context.speed(f"ZeRO {stage}, bfloat16: steps", 1.0 / took, "1/s", ("plain torch's", 1.0 / seconds), 0.87)


def _staged(run: RunSpec, stage: int) -> RunSpec:
    settings = {"backend": "deepspeed", "deepspeed": DeepSpeedSpec(zero_stage=stage)}  # type: ignore[arg-type]
    return run.model_copy(update={"trainer": run.trainer.model_copy(update=settings)})


def _trained(learner: Any, config: Config) -> dict[str, torch.Tensor]:
    for step in range(_STEPS):
        learner.train(batch(step, config["vocab_size"], 3, 20, 9))
    return {name: tensor.to("cpu", copy=True) for name, tensor in learner.weights().items()}


def _step_seconds(context: Context, learner: Any) -> float:
    steps = [batch(step, _MEDIUM["vocab_size"], 8, 128, 64) for step in range(_STEPS)]
    return min([wall(lambda step=step: learner.train(step), context.device) for step in steps][2:])

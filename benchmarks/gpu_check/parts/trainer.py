"""Part 3: the plain learner on the device: the CPU's results, the same bits after a resume, and the speed of a step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final, Literal

import torch

from gpu_check.context import Context
from gpu_check.random_models import EXPERTS, HALF_BILLION, LARGER, TINY, Config, batch, parameters, write_model
from gpu_check.timing import wall
from gradbus.formats.model_config import read_model_config
from gradbus.spec import RunSpec
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

_STEPS: Final = 5
_PACKED: Final = 8, 512, 192
"""Groups of eight, tokens of a prompt and of a response: 16,384 packed tokens."""
_ROOM_FOR_ACTIVATIONS: Final = 130 << 30
"""Free bytes from which on the larger model keeps its activations."""
Tensors = dict[str, torch.Tensor]


def run(context: Context) -> None:
    """Correctness on a tiny model, then the two larger ones."""
    tiny = write_model(context.folder / "tiny", TINY, context.device)
    _beside_the_cpu(context, tiny)
    for dtype in ("fp32", "bf16"):
        _resumed(context, tiny, dtype)
    if context.dry:
        return _speed(context, "tiny", TINY, (2, 8, 6))
    _speed(context, "0.5B", HALF_BILLION, _PACKED)
    _speed(context, "1.7B", LARGER, _PACKED)
    return _speed(context, "two layers of 128 experts", EXPERTS, _PACKED)


def spec(dtype: str = "fp32", **trainer: Any) -> RunSpec:
    """A run whose whole step is one micro-batch."""
    settings = {"learning_rate": 1e-3, "micro_batch_tokens": 1 << 15, "dtype": dtype, "threads": 1}
    body = {"name": "check", "model": {"path": "m"}, "data": {"train": "t"}, "reward": {"service": "grpc://scorer:1"}}
    return RunSpec.model_validate(body | {"schedule": {"steps": 100}, "algorithm": {"entropy": 0.01}, "trainer": settings | trainer})


def _beside_the_cpu(context: Context, folder: Path) -> None:
    """Losses, norms and weights of five steps, in float32."""
    here, there = TorchLearner(folder, spec(), context.device), TorchLearner(folder, spec(), "cpu")
    losses, norms = 0.0, 0.0
    for step in range(_STEPS):
        rows = batch(step, TINY["vocab_size"], 3, 20, 9)
        ours, wanted = here.train(rows), there.train(rows)
        losses = max(losses, abs(ours.loss.total - wanted.loss.total))
        norms = max(norms, abs(ours.grad_norm / wanted.grad_norm - 1.0))
    context.correct("five steps beside the CPU's: loss", losses, 1e-4)
    context.correct("five steps beside the CPU's: gradient's norm, relative", norms, 1e-3)
    found, exact = _copied(here.weights()), _copied(there.weights())
    apart = max(float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact)
    context.correct("five steps beside the CPU's: weights, relative", apart, 1e-3)


def _resumed(context: Context, folder: Path, dtype: Literal["fp32", "bf16"]) -> None:
    """Three steps, a snapshot through host memory, and two more; beside five without a break."""
    straight, stopped, resumed = (TorchLearner(folder, spec(dtype), context.device) for _ in range(3))
    rows = [batch(step, TINY["vocab_size"], 3, 80, 9) for step in range(_STEPS)]
    for step in rows:
        straight.train(step)
    for step in rows[:3]:
        stopped.train(step)
    resumed.restore(3, _copied(stopped.weights()), _copied(stopped.optimizer_tensors()))
    for step in rows[3:]:
        resumed.train(step)
    for name, state in (
        ("weights", (straight.weights(), resumed.weights())),
        ("moments", (straight.optimizer_tensors(), resumed.optimizer_tensors())),
    ):
        first, second = map(_copied, state)
        context.holds(f"{dtype}, resumed: the same bits of {name}", all(torch.equal(first[key], second[key]) for key in first))


def _copied(tensors: LazyTensors) -> Tensors:
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}


def _speed(context: Context, name: str, config: Config, sizes: tuple[int, int, int]) -> None:
    """Median-like: the fastest of three steps after two, in bfloat16; the losses must be finite."""
    folder = write_model(context.folder / f"{name}-bf16", config, context.device, torch.bfloat16)
    checkpointing = name == "1.7B" and torch.cuda.mem_get_info()[0] < _ROOM_FOR_ACTIVATIONS
    learner = TorchLearner(folder, spec("bf16", gradient_checkpointing=checkpointing), context.device)
    if not context.dry:
        torch.cuda.reset_peak_memory_stats()
    steps = [batch(step, config["vocab_size"], *sizes) for step in range(_STEPS)]
    metrics: list[Any] = []
    times = [wall(lambda step=step: metrics.append(learner.train(step)), context.device) for step in steps]
    took, packed = min(times[2:]), sizes[0] * (sizes[1] + 8 * sizes[2])
    name += ", activations computed again" if checkpointing else ""
    context.holds(f"{name}: finite losses", all(torch.isfinite(torch.tensor(found.loss.total)) for found in metrics))
    gemm = ("gemm_bf16", context.ceilings["gemm_bf16"])
    flops = _operations(folder, steps[0].trainable_counts, sizes)
    context.speed(f"{name}: model operations of a step", flops / took, "FLOP/s", gemm, 0.25)
    context.speed(f"{name}: packed tokens", packed / took, "tokens/s", ("gemm_bf16", packed * gemm[1] / flops))
    phases: Counter[str] = Counter()
    for phase in metrics[-1].phases:
        phases[phase.name] += phase.ended - phase.began
    for phase, nanoseconds in phases.items():
        context.speed(f"{name}: {phase}, by the host's clock", nanoseconds / 1e9, "s", ("the step", times[-1]))
    if not context.dry:
        total = torch.cuda.get_device_properties(0).total_memory
        context.speed(f"{name}: peak memory", torch.cuda.max_memory_allocated(), "B", ("the device's", total))
    learner = None  # type: ignore[assignment] # the next model needs its memory
    if not context.dry:
        torch.cuda.empty_cache()


def _operations(folder: Path, responses: Any, sizes: tuple[int, int, int]) -> float:
    """Of a step: six a parameter and token, the head's for response tokens alone, and attention to the keys that the mask leaves.

    Of the parameters of experts those of a token's own count.
    """
    total, embedding = parameters(folder)
    config, (groups, prompt, response) = read_model_config(folder), sizes
    head = embedding if config.tied else embedding * 2
    experts = [config.experts_of(number) for number in range(config.layers)]
    idle = sum(3 * config.hidden_size * own.width * (own.count - own.chosen) for own in experts if own)
    packed = groups * (prompt + 8 * response)
    seen = groups * (prompt**2 / 2 + 8 * (response * prompt + response**2 / 2))
    attention = 12.0 * config.layers * config.heads * config.head_dim * seen
    return 6.0 * (total - head - idle) * packed + 6.0 * embedding * sum(responses) + attention

"""One measurement, in a process of its own: `python child.py trainer|engine FOLDER PUBLISHED` with the spec as JSON on standard input."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from rows import PROMPT
from version import VERSION

from gradbus.memory.allocator import keep_freed_memory
from gradbus.spec import RunSpec
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.step.batch import Batch, TrainSample

_VOCABULARY: Final = 8192
_MOST: Final = 3
_ENOUGH: Final = 5.0
"""Seconds of the processor, after which no step is repeated."""


def main() -> None:
    """Prints bytes beyond those of the bare process at their peak, and the processor's seconds of a step."""
    what, folder, published = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    spec = RunSpec.model_validate(json.load(sys.stdin))
    torch.set_num_threads(1)
    keep_freed_memory()
    warm = torch.randn(64, 64, requires_grad=True)
    (warm @ warm).sum().backward()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    bare = _status("VmRSS")
    seconds = asyncio.run(engine_seconds(spec, folder, published / VERSION)) if what == "engine" else _trainer(spec, folder)
    print(json.dumps({"bytes": _status("VmHWM") - bare, "seconds": seconds}))


def _trainer(spec: RunSpec, folder: Path) -> float:
    learner = TorchLearner(folder, spec)
    learner.train(_batch(spec, 0))
    return _median(lambda step: learner.train(_batch(spec, step)))


async def engine_seconds(spec: RunSpec, folder: Path, version: Path) -> float:
    """Of the processor, for the samples of a step by an engine that has loaded `version` twice."""
    rollout, lora = spec.rollout, spec.trainer.lora
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if spec.trainer.dtype == "bf16" and lora is None else "float32"
    config = TorchEngineConfig(slots=rollout.slots, max_new_tokens=rollout.max_new_tokens, dtype=dtype)
    engine = TorchEngine.from_folder(folder, config, lora)
    await engine.load([version], 0)
    await engine.generate(_groups(spec, 0))
    await engine.load([version], 1)
    seconds: list[float] = []
    while len(seconds) < _MOST and sum(seconds) < _ENOUGH:
        began = time.process_time()
        await engine.generate(_groups(spec, 1 + len(seconds)))
        seconds.append(time.process_time() - began)
    await engine.close()
    return statistics.median(seconds)


def _median(step: Callable[[int], object]) -> float:
    seconds: list[float] = []
    while len(seconds) < _MOST and sum(seconds) < _ENOUGH:
        began = time.process_time()
        step(1 + len(seconds))
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def _groups(spec: RunSpec, step: int) -> list[PromptGroup]:
    draw, seeds = np.random.default_rng(step), tuple(range(spec.rollout.group_size))
    prompts = draw.integers(1, _VOCABULARY, (spec.schedule.groups_per_step, PROMPT))
    return [PromptGroup(str(number), tuple(prompt.tolist()), seeds) for number, prompt in enumerate(prompts)]


def _batch(spec: RunSpec, step: int) -> Batch:
    draw, count = np.random.default_rng(step), spec.rollout.max_new_tokens
    samples: list[TrainSample] = []
    for _ in range(spec.schedule.groups_per_step):
        prompt = draw.integers(1, _VOCABULARY, PROMPT).astype(np.int32)
        samples += [_sample(draw, prompt, count) for _ in range(spec.rollout.group_size)]
    return Batch(step, samples)


def _sample(draw: Any, prompt: np.ndarray, count: int) -> TrainSample:
    tokens = draw.integers(1, _VOCABULARY, count).astype(np.int32)
    behaviour = draw.normal(-9.0, 0.2, count).astype(np.float32)
    return TrainSample(prompt, tokens, behaviour, np.ones(count, np.bool_), np.full(count, draw.normal(), np.float32))


def _status(name: str) -> int:
    """Bytes of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) << 10


if __name__ == "__main__":
    main()

"""Part 5: a version on its way from the learner on the device to an engine that attests it: whole, and as a delta."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from gpu_check.context import Context
from gpu_check.parts.trainer import spec
from gpu_check.random_models import HALF_BILLION, LARGER, TINY, Config, batch, write_model
from gpu_check.timing import synchronize
from gradbus_kernels.weights.delta.file import apply_file_delta, encode_file_delta
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.tensors.export import Export, export_version
from gradbus_trainer.tensors.scratch import Scratch

_Result = TypeVar("_Result")


def run(context: Context) -> None:
    """In bfloat16, the dtype of both sides."""
    if context.dry:
        return _path(context, "tiny", TINY)
    _path(context, "0.5B", HALF_BILLION)
    torch.cuda.empty_cache()
    return _path(context, "1.7B", LARGER)


def _path(context: Context, name: str, config: Config) -> None:
    """Version 0, a step, version 1, its delta, and both loaded by an engine beside the learner."""
    folder = write_model(context.folder / name, config, context.device, torch.bfloat16)
    learner = TorchLearner(folder, spec("bf16", learning_rate=1e-6), context.device)
    engine = TorchEngine.from_folder(folder, TorchEngineConfig(slots=8, max_new_tokens=4, device=context.device, dtype="bfloat16"))
    scratch = Scratch(context.folder / f"{name}-versions")
    first = export_version(0, learner.weights(), False, scratch, torch.bfloat16)
    learner.train(batch(0, config["vocab_size"], 2, 20, 9))
    second, took = _timed(context, lambda: export_version(1, learner.weights(), False, scratch, torch.bfloat16))
    size = second.file.size_bytes
    context.speed(f"{name}: export with its digest", size / took, "B/s", ("d2h_pinned", context.ceilings["d2h_pinned"]))
    rounded = {key: tensor.bfloat16() for key, tensor in learner.weights().items()}
    context.holds(f"{name}: the file's digest is that of the weights on the device", weights_digest(rounded) == second.digest)
    del rounded
    context.holds(f"{name}: a step changes the version", first.digest != second.digest)
    rebuilt = _delta(context, name, first, second)
    for version, path, digest in ((0, first.file.path, first.digest), (1, rebuilt, second.digest)):
        attested, took = _timed(context, lambda path=path, version=version: asyncio.run(engine.load([path], version)))
        context.holds(f"{name}: the engine attests version {version}", attested == digest)
    context.speed(f"{name}: load with its digest", size / took, "B/s", ("h2d_pageable", context.ceilings["h2d_pageable"]))
    asyncio.run(engine.close())
    shutil.rmtree(folder)


def _delta(context: Context, name: str, first: Export, second: Export) -> Path:
    """The second version's file, made again from the first and the delta."""
    old, new = first.file.mapped(), second.file.mapped()
    delta, took = _timed(context, lambda: encode_file_delta(old, new))
    context.speed(f"{name}: delta", len(new) / took, "B/s")
    context.speed(f"{name}: size of the delta", len(delta), "B", ("the file", len(new)))
    path = context.folder / f"{name}-rebuilt.safetensors"
    target = bytearray(len(new))
    _, took = _timed(context, lambda: apply_file_delta(memoryview(delta), old, memoryview(target)))
    context.speed(f"{name}: applying the delta", len(new) / took, "B/s")
    context.holds(f"{name}: the delta leads to the same file", memoryview(target) == new)
    path.write_bytes(target)
    return path


def _timed(context: Context, work: Callable[[], _Result]) -> tuple[_Result, float]:
    synchronize(context.device)
    began = time.perf_counter()
    result = work()
    synchronize(context.device)
    return result, time.perf_counter() - began

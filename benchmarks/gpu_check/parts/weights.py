"""Part 5: a version on its way from the learner on the device to an engine that attests it: whole, and as a delta."""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from xxhash import xxh3_128

from gpu_check.context import Context
from gpu_check.parts.trainer import spec
from gpu_check.random_models import HALF_BILLION, LARGER, TINY, Config, batch, write_model
from gpu_check.timing import synchronize, wall
from gradbus_kernels.weights.delta.file import apply_file_delta, encode_file_delta
from gradbus_kernels.weights.delta.loops import COMPILE_BYTES, compiled_loops
from gradbus_kernels.weights.digest import digest_in_order
from gradbus_kernels.weights.digest_tree import PIECE_BYTES, piece_digest
from gradbus_kernels.weights.piece_reader import PieceReader
from gradbus_kernels.weights.piece_sender import PieceSender
from gradbus_kernels.weights.threads import thread_count, weight_threads
from gradbus_rollout.engines.torch import TorchEngine, TorchEngineConfig
from gradbus_trainer.learners.torch import TorchLearner
from gradbus_trainer.tensors.export import Export, export_version
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch

_Result = TypeVar("_Result")


def run(context: Context) -> None:
    """In bfloat16, the dtype of both sides; the larger model without a learner, which would take most of the time."""
    context.fact("device", {"threads for weights": thread_count()})
    _host(context)
    if context.dry:
        return _learned(context, "tiny", TINY)
    _learned(context, "0.5B", HALF_BILLION)
    torch.cuda.empty_cache()
    return _given(context, "1.7B", LARGER)


def _learned(context: Context, name: str, config: Config) -> None:
    """The versions before and after a learner's step."""
    folder = write_model(context.folder / name, config, context.device, torch.bfloat16)
    learner = TorchLearner(folder, spec("bf16", learning_rate=1e-6), context.device)
    _Path(context, name, folder).run(learner.weights, lambda: learner.train(batch(0, config["vocab_size"], 2, 20, 9)))


def _given(context: Context, name: str, config: Config) -> None:
    """The folder's weights, and some of them changed by a unit in the last place."""
    folder = write_model(context.folder / name, config, context.device, torch.bfloat16)
    tensors = {key: tensor.to(context.device) for key, tensor in load_file(folder / "model.safetensors").items()}

    def change() -> None:
        for tensor in tensors.values():
            tensor.view(torch.int16).add_((torch.rand(tensor.shape, device=context.device) < 0.005).to(torch.int16))

    _Path(context, name, folder).run(lambda: LazyTensors.of(tensors), change)


def _host(context: Context) -> None:
    """What bounds every way: SHA-256, and new pages of a file."""
    size = 1 << 23 if context.dry else 1 << 30
    content, path = torch.randint(256, (PIECE_BYTES,), dtype=torch.uint8).numpy(), context.folder / "new"
    places = range(0, size, PIECE_BYTES)

    def written() -> None:
        with path.open("wb") as file:
            for _ in places:
                file.write(content.data)

    def mapped() -> None:
        with path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            into = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        list(weight_threads().map(lambda begin: np.copyto(into[begin : begin + PIECE_BYTES], content), places))

    ways: dict[str, Callable[[], object]] = {
        "SHA-256, one thread": lambda: [piece_digest(content.data) for _ in places],
        "SHA-256, all threads": lambda: list(weight_threads().map(lambda _: piece_digest(content.data), places)),
        "a new file, written by one thread": written,
        "a new file, copied into its mapping by all threads": mapped,
    }
    for name, way in ways.items():
        context.speed(f"host: {name}", size / wall(way, context.device), "B/s")
    path.unlink()


@dataclass
class _Path:
    """The way of one model's versions."""

    context: Context
    name: str
    folder: Path

    def run(self, weights: Callable[[], LazyTensors], change: Callable[[], object]) -> None:
        """Version 0, a change, version 1, its delta, and both loaded by an engine."""
        scratch = Scratch(self.context.folder / f"{self.name}-versions")
        first = self._exported(0, weights(), scratch, "export with its digest, the first")
        change()
        second = self._exported(1, weights(), scratch, "export with its digest")
        self._phases(weights(), scratch, second)
        self._holds("a step changes the version", first.digest != second.digest)
        rebuilt = self._delta(first, second)
        self._load([(first.file.path, first.digest), (rebuilt, second.digest)])
        shutil.rmtree(self.folder)
        rebuilt.unlink()

    def _exported(self, step: int, weights: LazyTensors, scratch: Scratch, what: str) -> Export:
        """The later one finds the buffers made."""
        export, took = self._timed(lambda: export_version(step, weights, False, scratch, torch.bfloat16))
        self._speed(what, export.file.size_bytes / took, "d2h_pinned")
        return export

    def _phases(self, weights: LazyTensors, scratch: Scratch, export: Export) -> None:
        """The parts of an export one by one, with kept buffers; together they overlap."""
        reader, size = PieceReader(), export.file.size_bytes

        def copy() -> None:
            for name in weights:
                reader.submit(weights[name], torch.bfloat16, lambda _, piece: len(piece))
            reader.finish()

        copy()
        _, took = self._timed(copy)
        self._speed("phase of an export: copy to the host", size / took, "d2h_pinned")
        rounded = ((name, weights[name].bfloat16()) for name in sorted(weights))
        digest, took = self._timed(lambda: digest_in_order(rounded, reader))
        self._speed("phase of an export: copy and hash", size / took)
        self._holds("the file's digest is that of the weights on the device", digest == export.digest)
        file, took = self._timed(lambda: scratch.write(weights, torch.bfloat16))
        self._speed("phase of an export: copy and write", size / took)
        file.remove()

    def _delta(self, first: Export, second: Export) -> Path:
        """The second version's file, made again from the first and the delta; cold: into new memory, while the loops are compiled."""
        old, new = first.file.mapped(), second.file.mapped()
        target = _memory(len(new))
        for state in ("cold", "warm"):
            delta, took = self._timed(lambda: encode_file_delta(old, new))
            self._speed(f"delta, {state}", len(new) / took)
            _, took = self._timed(lambda delta=delta: apply_file_delta(memoryview(delta), old, target))
            self._speed(f"applying the delta, {state}", len(new) / took)
            if state == "cold" and len(new) >= COMPILE_BYTES:
                loops, took = self._timed(compiled_loops)
                self.context.speed(f"{self.name}: waited for the compiled loops ({'there' if loops else 'numpy serves'})", took, "s")
        self.context.speed(f"{self.name}: size of the delta", len(delta), "B", ("the file", len(new)))
        self._holds("the delta leads to the same file", xxh3_128(target).digest() == xxh3_128(new).digest())
        path = self.context.folder / f"{self.name}-rebuilt.safetensors"
        path.write_bytes(target)
        return path

    def _load(self, versions: list[tuple[Path, str]]) -> None:
        device = self.context.device
        engine = TorchEngine.from_folder(self.folder, TorchEngineConfig(slots=8, max_new_tokens=4, device=device, dtype="bfloat16"))
        for number, (path, digest) in enumerate(versions):
            attested, took = self._timed(lambda path=path, number=number: asyncio.run(engine.load([path], number)))
            self._speed(f"load with its digest, {('the first', 'the second')[number]}", path.stat().st_size / took, "h2d_pinned")
            self._holds(f"the engine attests version {number}", attested == digest)
        asyncio.run(engine.close())
        sender, size = PieceSender(), versions[0][0].stat().st_size
        for _ in range(2):  # the second time with kept buffers, into memory that was in use before
            _, took = self._timed(lambda: _send(sender, versions[0][0], device))
        self._speed("phase of a load: read and copy to the device", size / took, "h2d_pinned")

    def _speed(self, what: str, rate: float, ceiling: str | None = None) -> None:
        self.context.speed(f"{self.name}: {what}", rate, "B/s", (ceiling, self.context.ceilings[ceiling]) if ceiling else None)

    def _holds(self, what: str, condition: bool) -> None:
        self.context.holds(f"{self.name}: {what}", condition)

    def _timed(self, work: Callable[[], _Result]) -> tuple[_Result, float]:
        synchronize(self.context.device)
        began = time.perf_counter()
        result = work()
        synchronize(self.context.device)
        return result, time.perf_counter() - began


def _memory(size: int) -> memoryview:
    """In large pages, as a worker rebuilds a version."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


def _send(sender: PieceSender, file: Path, device: str) -> None:
    for tensor in load_file(file).values():
        sender.send(tensor, torch.empty_like(tensor, device=device), lambda: None)
    sender.finish()

"""Tensors as safetensors files and back, and the manifests that name them. Never a pickle."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import torch
from safetensors.torch import load_file

from gradbus.errors import ObjectMissingError, StorageError
from gradbus.formats.safetensors import PYTORCH
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import Shard
from gradbus_kernels.operators.base.dispatch import VARIABLE as KERNELS
from gradbus_kernels.weights.digest import WeightsDigest
from gradbus_trainer.lazy_tensors import LazyTensors
from gradbus_trainer.versions.scratch import Scratch, TensorFile

_log = get_logger(__name__)
_RETRY_SECONDS = 0.5
_ATTEMPTS = 5
_Stored = TypeVar("_Stored")
VERSION_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What a run publishes in, by the spec's names."""


@dataclass(frozen=True, slots=True)
class Export:
    """A policy version as a file."""

    step: int
    digest: str
    """Over the tensors alone; what engines attest."""
    file: TensorFile
    noop: bool


def export_version(step: int, weights: LazyTensors, noop: bool, scratch: Scratch, dtype: torch.dtype = torch.float32) -> Export:
    """Writes weights as one safetensors file that transformers loads; in a narrower `dtype`, rounded to nearest, ties to even.

    Raises StorageError.
    """
    digest = WeightsDigest()
    file = scratch.write(weights, dtype, PYTORCH, digest)
    return Export(step, digest.text, file, noop)


async def store_files(objects: ObjectStore, files: Sequence[TensorFile]) -> list[Shard]:
    """Stores optimiser state."""
    return [Shard(digest=await objects.put_file(file.path), size_bytes=file.size_bytes, tensors=file.names) for file in files]


async def load_tensors(objects: ObjectStore, shards: Sequence[Shard], scratch: Scratch) -> dict[str, torch.Tensor]:
    """The tensors of shards, checked against their digests and mapped: each is read when it is used. Not to be written to."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards:
        spare = scratch.new()
        try:
            tensors |= load_file(await objects.blob_file(shard.digest, spare))
        finally:
            spare.unlink(missing_ok=True)  # what is mapped stays
    return tensors


async def until_stored(store: Callable[[], Awaitable[_Stored]], what: str) -> _Stored:
    """What `store` gives; while object storage is away it is asked again, for storing the same content twice changes nothing."""
    while True:
        try:
            return await store()
        except StorageError as error:
            _log.warning("object_storage_away", waiting_to_store=what, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)


async def until_whole(attempt: Callable[[], Awaitable[_Stored]], what: str) -> _Stored:
    """What `attempt`, which stores shards and then names them, gives.

    A shard that is there already is not written again, and until it is named the retention of another run, which shares it, may
    delete it: then it is stored anew. Raises ObjectMissingError when that does not help.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return await attempt()
        except ObjectMissingError as error:
            if not left:
                raise
            _log.warning("stored_again", what=what, error=str(error))
    raise AssertionError("the last attempt returns or raises")


def fingerprint(threads: int) -> dict[str, str]:
    """What decides bits besides the spec."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "threads": str(threads),
        "ranks": os.environ.get("WORLD_SIZE", "1"),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
        "kernels": os.environ.get(KERNELS, ""),
    }

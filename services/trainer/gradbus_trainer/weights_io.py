"""Tensors as safetensors bytes and back, and the manifests that name them. Never a pickle."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import safetensors.torch
import torch

from gradbus.errors import ObjectMissingError, StorageError
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import Shard
from gradbus_kernels.weights_digest import weights_digest

_log = get_logger(__name__)
_RETRY_SECONDS = 0.5
_ATTEMPTS = 5
_Stored = TypeVar("_Stored")
VERSION_DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What a run publishes in, by the spec's names."""


@dataclass(frozen=True, slots=True)
class Export:
    """A policy version, serialised."""

    step: int
    digest: str
    """Over the tensors alone; what engines attest."""
    content: bytes
    tensors: tuple[str, ...]
    noop: bool


def export_version(step: int, weights: Mapping[str, torch.Tensor], noop: bool, dtype: torch.dtype = torch.float32) -> Export:
    """Serialises weights as one safetensors file that transformers loads; in a narrower `dtype`, rounded to nearest, ties to even."""
    tensors = {name: tensor.to(dtype) for name, tensor in weights.items()}
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    return Export(step, weights_digest(tensors), content, tuple(sorted(tensors)), noop)


async def store_tensors(objects: ObjectStore, tensors: Mapping[str, torch.Tensor]) -> list[Shard]:
    """Stores optimiser state; nothing for no tensors."""
    if not tensors:
        return []
    content = safetensors.torch.save(dict(tensors))
    return [Shard(digest=await objects.put_blob(content), size_bytes=len(content), tensors=sorted(tensors))]


async def load_tensors(objects: ObjectStore, shards: list[Shard]) -> dict[str, torch.Tensor]:
    """Reads shards back, checked against their digests."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards:
        tensors |= safetensors.torch.load(await objects.get_blob(shard.digest))
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
    }

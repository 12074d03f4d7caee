"""Tensor files to object storage and back, named by digest. Never a pickle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from safetensors.torch import load_file

from gradbus.errors import ObjectMissingError, StorageError
from gradbus.formats.frozen import frozen_names
from gradbus.objects import ObjectStore
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import Shard
from gradbus_trainer.tensors.scratch import Scratch, TensorFile

_log = get_logger(__name__)
_RETRY_SECONDS = 0.5
_ATTEMPTS = 5
_Result = TypeVar("_Result")
_Tell = Callable[[str], None]


def _to_nobody(trouble: str) -> None: ...


_TELL: ContextVar[_Tell] = ContextVar("tell_storage_trouble", default=_to_nobody)


async def store_files(objects: ObjectStore, files: Sequence[TensorFile]) -> list[Shard]:
    """Stores optimiser state."""
    return [Shard(digest=await objects.put_file(file.path), size_bytes=file.size_bytes, tensors=file.names) for file in files]


async def load_tensors(objects: ObjectStore, shards: Sequence[Shard], scratch: Scratch) -> dict[str, torch.Tensor]:
    """The tensors of shards that are not frozen, checked against their digests and mapped: each is read when it is used.

    They are read-only.
    """
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards:
        spare = scratch.new()
        try:
            loaded = load_file(await objects.blob_file(shard.digest, spare))
            frozen = frozen_names(loaded)
            tensors |= {name: tensor for name, tensor in loaded.items() if name not in frozen}
        finally:
            spare.unlink(missing_ok=True)  # the mapping survives its file
    return tensors


@contextmanager
def storage_trouble_told(tell: _Tell) -> Iterator[None]:
    """In the block, and in tasks that it starts, `tell` hears why something cannot be stored, and an empty text once it is stored."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


async def until_stored(store: Callable[[], Awaitable[_Result]], what: str) -> _Result:
    """The result of `store`, repeated while storage is unavailable; storing the same content twice changes nothing."""
    tell, told = _TELL.get(), False
    try:
        while True:
            try:
                return await store()
            except StorageError as error:
                _log.warning("object_storage_unreachable", waiting_to_store=what, error=str(error))
                tell(f"{what} waits to be stored: {error}")
                told = True
                await asyncio.sleep(_RETRY_SECONDS)
    finally:
        if told:
            tell("")


async def until_complete(attempt: Callable[[], Awaitable[_Result]], what: str) -> _Result:
    """The result of `attempt`, which stores shards and then the manifest that names them.

    A shard that exists already is not uploaded again, and until a manifest names it, the retention of another run that shares it
    may delete it: then every shard is stored again. Raises ObjectMissingError after five attempts.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return await attempt()
        except ObjectMissingError as error:
            if not left:
                raise
            _log.warning("storing_again", what=what, error=str(error))
    raise AssertionError("the last attempt returns or raises")

"""Compares a tied head that is stored too with the embedding, in object storage: both are read in parts, to the first difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from gradbus.formats.model_weights import TiedHead, refuse_other_head
from gradbus.formats.safetensors import PART_ELEMENTS, StoredTensor, are_equal_values, item_bytes
from gradbus.objects import ObjectStore


async def check_stored_head(objects: ObjectStore, files: Mapping[str, str], tied: TiedHead) -> None:
    """Raises ModelError if the head is not the embedding. `files`: name to digest."""
    for embedding in tied.embeddings:
        if await _have_equal_values(objects, files, tied.head, embedding):
            return
    refuse_other_head()


async def _have_equal_values(objects: ObjectStore, files: Mapping[str, str], one: StoredTensor, other: StoredTensor) -> bool:
    here, there = _parts(objects, files[one.file.name], one), _parts(objects, files[other.file.name], other)
    async with aclosing(here), aclosing(there):
        async for part in here:
            against = await anext(there)
            if not await asyncio.to_thread(are_equal_values, part, one.dtype, against, other.dtype):
                return False
    return True


async def _parts(objects: ObjectStore, digest: str, tensor: StoredTensor) -> AsyncGenerator[bytes]:
    """The tensor's bytes, PART_ELEMENTS elements at a time."""
    wanted, at, rest = PART_ELEMENTS * item_bytes(tensor.dtype), 0, bytearray()
    # Not by its range: some servers (rclone's) do not answer a range.
    _, pieces = await objects.open_blob(digest)
    async with aclosing(pieces):
        async for piece in pieces:
            rest += piece[max(tensor.start - at, 0) : max(tensor.end - at, 0)]
            at += len(piece)
            while len(rest) >= wanted:
                yield bytes(rest[:wanted])
                del rest[:wanted]
            if at >= tensor.end:
                break
    if rest:
        yield bytes(rest)

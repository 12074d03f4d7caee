"""Stores uploads as blobs. Large files go through the disk, never through memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterable
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel

from gradbus.control.condemned import CondemnedBlobs
from gradbus.objects import ObjectStore
from gradbus_gateway.http.problems import ProblemError

_IN_MEMORY_BYTES = 1 << 20


class FileResource(BaseModel):
    """A stored file."""

    object: Literal["file"] = "file"
    id: str
    bytes: int


async def store_stream(objects: ObjectStore, condemned: CondemnedBlobs, chunks: AsyncIterable[bytes]) -> FileResource:
    """Stores the chunks as one blob, which is not deleted soon. Raises the problem 422 if there are no bytes."""
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:
        async for chunk in chunks:
            await asyncio.to_thread(spool.write, chunk)
        return await store_upload(objects, condemned, spool)


async def store_upload(objects: ObjectStore, condemned: CondemnedBlobs, file: IO[bytes]) -> FileResource:
    """Stores an open file from its beginning; it is not deleted soon, though no run names it.

    Raises the problem 422 if it is empty: nothing that a spec names is.
    """
    if not file.seek(0, 2):
        detail = "the upload has no bytes; send the file's content as the body, or as the part `file` of a form"
        raise ProblemError(422, "empty-file", detail)
    stored = await store_file(objects, file)
    # A file that was stored already is not written again, and it may be deleted at this moment.
    return await store_file(objects, file) if await condemned.keep([stored.id]) else stored


async def store_path(objects: ObjectStore, path: Path) -> FileResource:
    """Stores the file at `path`. Raises OSError."""
    with await asyncio.to_thread(path.open, "rb") as file:
        return await store_file(objects, file)


async def store_file(objects: ObjectStore, file: IO[bytes]) -> FileResource:
    """Stores an open file from its beginning."""
    size = file.seek(0, 2)
    file.seek(0)
    if size <= _IN_MEMORY_BYTES:
        return FileResource(id=await objects.put_blob(file.read()), bytes=size)
    return FileResource(id=await objects.put_open_file(file, size), bytes=size)

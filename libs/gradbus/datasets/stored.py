"""Rows of a dataset in object storage."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gradbus.datasets.row_file import RowFile
from gradbus.objects import ObjectStore
from gradbus.objects.cache_dir import written_below_cache
from gradbus.objects.folder import partial_folder


async def open_rows(objects: ObjectStore, digest: str, cache_dir: Path) -> RowFile:
    """The rows of a stored dataset, or of its prompts. From a bucket they are copied below `cache_dir`, and the copy is already removed.

    Raises ObjectMissingError, CorruptRecordError, DiskError.
    """
    with written_below_cache("a dataset"):
        async with partial_folder(cache_dir / "datasets") as folder:
            return await asyncio.to_thread(RowFile, await objects.blob_file(digest, folder / "rows"))


async def first_rows(objects: ObjectStore, digest: str, count: int) -> list[bytes]:
    """The first lines, without their ends; the rest of the dataset is not read. Raises ObjectMissingError."""
    _, pieces = await objects.open_blob(digest)
    lines, rest = list[bytes](), b""
    async for piece in pieces:
        *complete, rest = (rest + piece).split(b"\n")
        lines.extend(complete)
        if len(lines) >= count:
            break
    await pieces.aclose()
    return [*lines, rest][:count] if rest else lines[:count]

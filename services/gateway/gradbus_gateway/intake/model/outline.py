"""An outline of a stored model: its configurations, the headers of its weights, and the sizes of all files without their contents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final

from gradbus.errors import Fault, ModelError, SpecError
from gradbus.formats.hf_model import CONFIG, INDEX, checked_file_name, most_bytes, sanitized_config
from gradbus.formats.safetensors import LENGTH_BYTES, MAX_HEADER_BYTES, header_length
from gradbus.objects import ObjectStore

TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_MAX_WITH_CODE: Final = 1 << 20
"""Of a configuration that is parsed here, which keeps every other request waiting."""
_READ: Final = frozenset({CONFIG, INDEX, TOKENIZER_CONFIG})


async def write_outline(objects: ObjectStore, files: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Writes the outline of `files` (name to digest) into `folder`, in which it takes no more room than what is read.

    Returns the digests to store, which differ where code was removed from a configuration. Raises ModelError for an unsafe name or a
    configuration that cannot be read, SpecError for a file that is not stored.
    """
    room = MAX_HEADER_BYTES
    digests = {checked_file_name(name): digest for name, digest in files.items()}
    for name, digest in files.items():
        size = await objects.blob_size(digest)
        if size is None:
            raise SpecError([Fault(f"model.files.{name}", "the file is not stored", digest, "the id that POST /v1/files returned")])
        most = most_bytes(name)
        content = b""
        if most is None:
            content = await _header(objects, digest, size, room)
            room -= len(content)
        elif name in _READ and size <= most:
            content = await objects.get_blob(digest)
            if name != INDEX and b"auto_map" in content:
                _check_code(name, size)
                content = await asyncio.to_thread(sanitized_config, content)
                digests[name], size = await objects.put_blob(content), len(content)
        await asyncio.to_thread(_write, folder / name, content, size)
    return digests


async def _header(objects: ObjectStore, digest: str, size: int, room: int) -> bytes:
    """The header with its length; without what does not fit into `room`, which the check of the weights refuses."""
    content, wanted = bytearray(), min(size, LENGTH_BYTES)
    # Not in parts by their ranges: some servers (rclone's) do not answer a range.
    _, pieces = await objects.open_blob(digest)
    async with aclosing(pieces):
        async for piece in pieces:
            content += piece
            if len(content) >= LENGTH_BYTES:
                end = LENGTH_BYTES + header_length(bytes(content[:LENGTH_BYTES]))
                wanted = end if LENGTH_BYTES < end <= min(size, room) else LENGTH_BYTES
            if len(content) >= wanted:
                break
    return bytes(content[:wanted])


def _check_code(name: str, size: int) -> None:
    if size > _MAX_WITH_CODE:
        raise ModelError(f"{name} names code (auto_map) and has more than {_MAX_WITH_CODE} bytes; remove `auto_map` from it")


def _write(path: Path, content: bytes, size: int) -> None:
    path.write_bytes(content)
    os.truncate(path, size)  # the rest is a hole

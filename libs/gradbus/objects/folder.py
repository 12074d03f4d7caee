"""A folder of files taken from object storage, e.g. a model in Hugging Face layout."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from gradbus.errors import SettingsError
from gradbus.formats.hf_model import sanitized_config
from gradbus.ids import digest_of
from gradbus.objects.cache_dir import written_below
from gradbus.objects.durable import sync_files
from gradbus.objects.paths import is_safe_part
from gradbus.objects.store import ObjectStore

_CONFIGS = frozenset({"config.json", "tokenizer_config.json", "processor_config.json"})
_DRAFT = ".draft-"


async def materialise(store: ObjectStore, files: Mapping[str, str], folder: Path) -> Path:
    """Writes `files` (name to digest) into a folder below `folder` that is named after them, and returns it.

    A folder that exists is whole, also after a power cut, for it came by one rename: several processes may do this at once.
    Code that a configuration of the model would have loaded (`auto_map`) is stripped.
    Raises SettingsError for an unsafe name, ObjectMissingError, CorruptRecordError, DiskError, and ModelError for a config that is none.
    """
    for name in files:
        if not is_safe_part(name):
            raise SettingsError(f"file name {name!r} is not safe; use letters, digits, '.', '_' and '-', and no folders")
    key = digest_of(json.dumps(dict(files), sort_keys=True).encode()).removeprefix("sha256:")
    target = folder / key
    if await asyncio.to_thread(target.is_dir):
        return target
    with written_below(folder, "a model"):
        async with _draft(folder) as draft:
            for name, digest in files.items():
                data = await store.get_blob(digest)
                await asyncio.to_thread((draft / name).write_bytes, sanitized_config(data) if name in _CONFIGS else data)
            await asyncio.to_thread(sync_files, draft, files)
            await asyncio.to_thread(_move, draft, target)
    return target


@asynccontextmanager
async def _draft(folder: Path) -> AsyncIterator[Path]:
    """A folder that is removed after the block, if it is still there. Whoever is alone removes what killed processes left."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        draft = await asyncio.to_thread(_begun, folder, lock)
        try:
            yield draft
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
    finally:
        os.close(lock)


def _begun(folder: Path, lock: int) -> Path:
    with contextlib.suppress(OSError):  # others are at work, or the file system knows no locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
    return Path(tempfile.mkdtemp(prefix=_DRAFT, dir=folder))


def _move(draft: Path, target: Path) -> None:
    try:
        os.replace(draft, target)
    except OSError:
        # A folder with content cannot be replaced: another process was first, with the same files.
        if not target.is_dir():
            raise

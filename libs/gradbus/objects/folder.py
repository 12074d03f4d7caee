"""A folder of files taken from object storage, e.g. a model in Hugging Face layout."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from gradbus.errors import SettingsError
from gradbus.formats.hf_model import CONFIG, PROCESSORS, sanitized_config
from gradbus.ids import digest_of_json
from gradbus.objects.cache_dir import written_below_cache
from gradbus.objects.durable import sync_files
from gradbus.objects.paths import is_safe_part
from gradbus.objects.store import ObjectStore

_CONFIGS = frozenset({CONFIG, "tokenizer_config.json", *PROCESSORS})
_PARTIAL = ".partial-"


async def materialise(store: ObjectStore, files: Mapping[str, str], folder: Path) -> Path:
    """Writes `files` (name to digest) into a folder below `folder`, named by a digest of `files`, and returns it.

    An existing folder is complete, also after a power cut, since it was made by one rename; several processes may do this at once.
    `auto_map`, by which a model's configuration loads code, is removed.
    Raises SettingsError for an unsafe name, ModelError for an invalid configuration, ObjectMissingError, CorruptRecordError, DiskError.
    """
    for name in files:
        if not is_safe_part(name):
            raise SettingsError(f"file name {name!r} is not safe; use letters, digits, '.', '_' and '-', and no folders")
    key = digest_of_json(dict(files)).removeprefix("sha256:")
    target = folder / key
    if await asyncio.to_thread(target.is_dir):
        return target
    with written_below_cache("a model"):
        async with partial_folder(folder) as partial:
            for name, digest in files.items():
                await _write(store, digest, partial / name)
            await asyncio.to_thread(sync_files, partial, files)
            await asyncio.to_thread(_move, partial, target)
    return target


async def _write(store: ObjectStore, digest: str, target: Path) -> None:
    if target.name in _CONFIGS:
        data = await store.get_blob(digest)
        await asyncio.to_thread(lambda: target.write_bytes(sanitized_config(data)))
    elif (stored := await store.blob_file(digest, target)) != target:
        await asyncio.to_thread(shutil.copyfile, stored, target)  # never as a whole in memory: it may be a model's weights


@asynccontextmanager
async def partial_folder(folder: Path) -> AsyncIterator[Path]:
    """A folder that is removed after the block. A process that is alone here also removes the partial folders of killed ones."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        partial = await asyncio.to_thread(_make_partial_folder, folder, lock)
        try:
            yield partial
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
    finally:
        os.close(lock)


def _make_partial_folder(folder: Path, lock: int) -> Path:
    with contextlib.suppress(OSError):  # other processes are at work, or the file system has no locks
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for abandoned in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_SH)
    return Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=folder))


def _move(partial: Path, target: Path) -> None:
    try:
        os.replace(partial, target)
    except OSError:
        # A folder with content cannot be replaced: another process was first, with the same content.
        if not target.is_dir():
            raise

"""Shards as files named by their digests. Several workers of a machine may share the folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from gradbus.errors import CorruptRecordError
from gradbus.ids import digest_of, digest_of_file
from gradbus.objects.cache_dir import written_below_cache
from gradbus_kernels.weights.threads import submit

KEPT = 8
"""Shards that stay in the cache after a load."""


class ShardCache:
    """Checks each shard's digest when it is written. A file that changes later is caught by the attestation of the load."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: str) -> Path | None:
        """The shard's file; None if it is not in the cache."""
        path = self._path(digest)
        return path if path.exists() else None

    async def keep(self, digest: str, content: bytes | memoryview) -> Path:
        """Writes a shard's file atomically. Raises CorruptRecordError when the content has another digest, and DiskError."""
        return await asyncio.to_thread(self._keep, digest, content)

    @contextlib.contextmanager
    def partial_file(self, digest: str) -> Iterator[Path]:
        """A temporary file for a shard's content, removed after the block unless `adopt` was called. Raises DiskError."""
        path = self._path(digest)
        partial = path.with_suffix(f".{secrets.token_hex(4)}.part")
        with written_below_cache("a version's weights"):
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                yield partial
            finally:
                partial.unlink(missing_ok=True)

    def adopt(self, digest: str, partial: Path) -> Path:
        """Renames a partial file to the shard's. Raises CorruptRecordError when its content has another digest."""
        return self._named(digest, digest_of_file(partial), partial)

    def discard(self, digest: str) -> None:
        """Removes a shard whose file may be damaged."""
        self._path(digest).unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        """Makes a shard of the cache the newest: what every version has in common is loaded again and again. Ignores other files."""
        if path.parent == self._folder:
            with contextlib.suppress(OSError):  # evicted by another worker, or of another user
                os.utime(path)

    def evict(self, kept: int) -> None:
        """Removes all but the newest `kept` shards."""
        with contextlib.suppress(FileNotFoundError):  # another worker of this machine evicts at the same time
            for old in sorted(self._folder.iterdir(), key=lambda file: -file.stat().st_mtime)[kept:]:
                old.unlink(missing_ok=True)

    def _keep(self, digest: str, content: bytes | memoryview) -> Path:
        with self.partial_file(digest) as partial:
            hashed = submit(lambda: digest_of(content), len(content))
            try:
                partial.write_bytes(content)
            finally:
                found = hashed.result()  # after an error too: a thread reads the caller's memory
            return self._named(digest, found, partial)

    def _named(self, digest: str, found: str, partial: Path) -> Path:
        if found != digest:
            raise CorruptRecordError(f"the shard {digest} arrived with the digest {found}; it is fetched by another route")
        return partial.rename(self._path(digest))

    def _path(self, digest: str) -> Path:
        return self._folder / digest.removeprefix("sha256:")

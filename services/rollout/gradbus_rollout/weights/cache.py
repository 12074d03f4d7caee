"""Shards kept as files, by digest. Several workers of a machine may share the folder."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from gradbus.errors import CorruptRecordError
from gradbus.ids import digest_of_file
from gradbus.objects.cache_dir import written_below

KEPT = 8


class ShardCache:
    """What was written here had its digest; whether it still has, the engine's attestation tells."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: str) -> Path | None:
        """The shard's file, if it is here."""
        path = self._path(digest)
        return path if path.exists() else None

    async def keep(self, digest: str, content: bytes | bytearray) -> Path:
        """Writes a shard's file, whole or not at all. Raises CorruptRecordError when the content has another digest, and DiskError."""
        return await asyncio.to_thread(self._keep, digest, content)

    @contextlib.contextmanager
    def draft(self, digest: str) -> Iterator[Path]:
        """A file to write a shard into; inside the block `adopt` makes it the shard's, else it is removed. Raises DiskError."""
        path = self._path(digest)
        draft = path.with_suffix(f".{secrets.token_hex(4)}.part")
        with written_below(self._folder, "a version's weights"):
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                yield draft
            finally:
                draft.unlink(missing_ok=True)

    def adopt(self, digest: str, draft: Path) -> Path:
        """Keeps what was written. Raises CorruptRecordError when it has another digest."""
        if (found := digest_of_file(draft)) != digest:
            raise CorruptRecordError(f"the shard {digest} came here with the digest {found}; it is brought in another way")
        return draft.rename(self._path(digest))

    def discard(self, digest: str) -> None:
        """Removes a shard that is not what it should be."""
        self._path(digest).unlink(missing_ok=True)

    def evict(self, kept: int) -> None:
        """Removes all but the newest `kept` shards."""
        with contextlib.suppress(FileNotFoundError):  # another worker of this machine evicts as well
            for old in sorted(self._folder.iterdir(), key=lambda file: -file.stat().st_mtime)[kept:]:
                old.unlink(missing_ok=True)

    def _keep(self, digest: str, content: bytes | bytearray) -> Path:
        with self.draft(digest) as draft:
            draft.write_bytes(content)
            return self.adopt(digest, draft)

    def _path(self, digest: str) -> Path:
        return self._folder / digest.removeprefix("sha256:")

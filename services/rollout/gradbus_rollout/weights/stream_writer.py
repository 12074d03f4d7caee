"""Shards in the cache, written from the byte stream of a broadcast."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradbus.errors import CorruptRecordError
from gradbus.ids import is_digest
from gradbus.v1.weights_pb2 import Shard


class ShardStreamWriter:
    """Splits a stream into shards. A shard appears in the cache only when it is whole and has its digest."""

    def __init__(self, shards: Sequence[Shard], cache: Path, scratch: Path) -> None:
        """`scratch` is a folder on the cache's file system.

        Raises CorruptRecordError for a malformed digest, which would become a path.
        """
        if unsafe := [shard.digest for shard in shards if not is_digest(shard.digest)]:
            raise CorruptRecordError(f"{unsafe[0]!r} is not a digest; the version is taken from object storage")
        for folder in (cache, scratch):
            folder.mkdir(parents=True, exist_ok=True)
        self._cache = cache
        # A folder of its own: the thread of an earlier broadcast, left behind, may still write.
        self._scratch = Path(tempfile.mkdtemp(dir=scratch))
        self._pending = list(shards)
        self._hash = hashlib.sha256()
        self._size = 0
        self._file = self._partial.open("wb")
        self.damaged: list[str] = []
        """Digests of the shards whose bytes had another digest."""
        self._end_complete()

    @property
    def _partial(self) -> Path:
        return self._scratch / "shard"

    def write(self, piece: memoryview) -> None:
        """Writes the next bytes of the stream, without keeping `piece`. Raises IndexError for more bytes than the shards have."""
        while len(piece):
            part = piece[: self._pending[0].size_bytes - self._size]
            self._hash.update(part)
            self._file.write(part)
            self._size += len(part)
            piece = piece[len(part) :]
            self._end_complete()

    def close(self) -> None:
        """Removes the shard that is not whole."""
        self._file.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _end_complete(self) -> None:
        """Ends every shard that has all its bytes; an empty shard ends at once."""
        while self._pending and self._size == self._pending[0].size_bytes:
            self._end(self._pending.pop(0).digest)

    def _end(self, digest: str) -> None:
        self._file.close()
        if f"sha256:{self._hash.hexdigest()}" == digest:
            self._partial.rename(self._cache / digest.removeprefix("sha256:"))
        else:
            self.damaged.append(digest)
        self._hash, self._size, self._file = hashlib.sha256(), 0, self._partial.open("wb")

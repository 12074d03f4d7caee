"""The cache's files, made from a stream of bytes that somebody sends."""

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
    """Takes a stream apart into shards. A file appears in the cache, whole, only if its content has its digest."""

    def __init__(self, shards: Sequence[Shard], cache: Path, drafts: Path) -> None:
        """`drafts` is a folder on the cache's file system.

        Raises CorruptRecordError for a digest that is none: it would become a path.
        """
        if unsafe := [shard.digest for shard in shards if not is_digest(shard.digest)]:
            raise CorruptRecordError(f"{unsafe[0]!r} is not a digest; the version is taken from object storage")
        for folder in (cache, drafts):
            folder.mkdir(parents=True, exist_ok=True)
        self._cache = cache
        # A thread that was left behind may still write what is now nobody's.
        self._drafts = Path(tempfile.mkdtemp(dir=drafts))
        self._left = list(shards)
        self._hash = hashlib.sha256()
        self._size = 0
        self._file = self._draft.open("wb")
        self.damaged: list[str] = []
        """Digests of shards that came otherwise than they should."""
        self._skip_empty()

    @property
    def _draft(self) -> Path:
        return self._drafts / "shard"

    def take(self, piece: memoryview) -> None:
        """The next bytes of the stream; not kept. More than the shards hold is an IndexError."""
        while len(piece):
            part = piece[: self._left[0].size_bytes - self._size]
            self._hash.update(part)
            self._file.write(part)
            self._size += len(part)
            piece = piece[len(part) :]
            self._skip_empty()

    def close(self) -> None:
        """Removes what is not whole."""
        self._file.close()
        shutil.rmtree(self._drafts, ignore_errors=True)

    def _skip_empty(self) -> None:
        """Ends every shard that has all its bytes, an empty one at once."""
        while self._left and self._size == self._left[0].size_bytes:
            self._end(self._left.pop(0).digest)

    def _end(self, digest: str) -> None:
        self._file.close()
        if f"sha256:{self._hash.hexdigest()}" == digest:
            self._draft.rename(self._cache / digest.removeprefix("sha256:"))
        else:
            self.damaged.append(digest)
        self._hash, self._size, self._file = hashlib.sha256(), 0, self._draft.open("wb")

"""A key with one writer at a time, which may be replaced without knowing it."""

from __future__ import annotations

from gradbus.bus.kv import Bucket, Conflict
from gradbus.errors import FencedError


class OwnedKey:
    """Reads once, then writes by compare-and-set: a process that froze and comes back takes back nothing of its successor's."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._revision: int | None = None
        self.key = key

    async def read(self) -> bytes | None:
        """The value, or None. From here on the key is this writer's."""
        entry = await self._bucket.get(self.key)
        self._revision = entry.revision if entry else None
        return entry.value if entry else None

    async def write(self, value: bytes) -> None:
        """Replaces what was read or written last. Raises FencedError if somebody else wrote since."""
        try:
            if self._revision is None:
                self._revision = await self._bucket.create(self.key, value)
            else:
                self._revision = await self._bucket.update(self.key, value, self._revision)
        except Conflict:
            raise FencedError(f"somebody else wrote {self.key}; let go of the run, and read again before taking it up") from None

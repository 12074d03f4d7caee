"""A key that is written by compare-and-set."""

from __future__ import annotations

from gradbus.bus.kv import Bucket, Conflict
from gradbus.errors import FencedError


class OwnedKey:
    """Remembers the revision last seen; every write must follow it.

    So of two processes that both believe they own the key one is refused, e.g. one that froze and comes back.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self.key = key
        self.revision: int | None = None
        """As last read or written; None while the key does not exist."""
        self.value: bytes | None = None
        """As last read or written; None while the key does not exist."""

    async def refresh(self) -> bool:
        """Reads the key; whether it changed since it was last seen."""
        entry = await self._bucket.get(self.key)
        revision = entry.revision if entry else None
        changed = revision != self.revision
        self.revision = revision
        self.value = entry.value if entry else None
        return changed

    async def read(self) -> bytes | None:
        """The key's value now, or None. The next write replaces it."""
        await self.refresh()
        return self.value

    async def replace(self, value: bytes) -> None:
        """Writes the key. Raises Conflict if it changed since it was last seen; refresh, decide again, and repeat."""
        if self.revision is None:
            self.revision = await self._bucket.create(self.key, value)
        else:
            self.revision = await self._bucket.update(self.key, value, self.revision)
        self.value = value

    async def write(self, value: bytes) -> None:
        """Writes a key that has one owner at a time. Raises FencedError if it changed: there is a newer owner."""
        try:
            await self.replace(value)
        except Conflict:
            raise FencedError(f"another process wrote {self.key}; let go of the run, and read again before taking it up") from None

    async def touch(self) -> None:
        """Gives the same value a new revision, so that every other process must refresh before its next write."""
        if self.value is not None:
            await self.replace(self.value)

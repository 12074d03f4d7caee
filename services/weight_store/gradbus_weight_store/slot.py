"""One key of the bucket `heads`, with the revision that the next write must follow."""

from __future__ import annotations

from gradbus.bus import Bucket


class Slot:
    """Every write is a compare-and-set: two replicas of this service cannot both move a head."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._revision: int | None = None
        self.value: bytes | None = None

    async def refresh(self) -> bool:
        """Reads the key; whether it changed since it was last seen."""
        entry = await self._bucket.get(self._key)
        revision = entry.revision if entry else None
        changed = revision != self._revision
        self._revision = revision
        self.value = entry.value if entry else None
        return changed

    async def write(self, value: bytes) -> None:
        """Replaces what was last seen. Raises Conflict if somebody else was first."""
        if self._revision is None:
            self._revision = await self._bucket.create(self._key, value)
        else:
            self._revision = await self._bucket.update(self._key, value, self._revision)
        self.value = value

    async def touch(self) -> None:
        """Gives the same value a new revision, so that a replica which has not seen why must read again."""
        if self.value is not None:
            await self.write(self.value)

"""Idempotency keys of submissions: a repeated request returns the run of the first one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gradbus.bus import Bucket, Conflict


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The request that an idempotency key came with first, and its run."""

    body: str
    """SHA-256 of the request's body."""
    run_id: str


class IdempotencyKeys:
    """Reads and writes `idempotency.key.<hash>` in the bucket `runs`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def get(self, key: str) -> IdempotencyRecord | None:
        """The record of the idempotency key with this hash, or None."""
        entry = await self._bucket.get(f"idempotency.key.{key}")
        return IdempotencyRecord(**json.loads(entry.value)) if entry else None

    async def claim(self, key: str, record: IdempotencyRecord) -> IdempotencyRecord:
        """Stores `record` unless the key has one; returns the stored record, which may be an earlier request's."""
        while True:
            try:
                await self._bucket.create(f"idempotency.key.{key}", json.dumps(asdict(record)).encode())
            except Conflict:
                if (stored := await self.get(key)) is None:
                    continue  # its run was deleted at this moment
                return stored
            return record

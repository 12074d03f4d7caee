"""The newest version and checkpoint of a run, as the bucket `heads` has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gradbus.bus import Buckets, Bus
from gradbus.v1.weights_pb2 import CheckpointHead, WeightManifest


class Heads:
    """Both only grow: a restarted trainer publishes its versions again, which changes nothing."""

    def __init__(self, run_id: str, wake: asyncio.Event) -> None:
        self._run_id = run_id
        self._wake = wake
        self.version = -1
        self.checkpoint = -1

    @asynccontextmanager
    async def follow(self, bus: Bus) -> AsyncIterator[None]:
        """Keeps both heads up to date inside the block."""
        heads = await bus.bucket(Buckets.HEADS)
        async with heads.view(f"{self._run_id}.>") as view:
            view.listen(lambda key: self._read(key, view.get(key)))
            yield

    def _read(self, key: str, value: bytes | None) -> None:
        before = self.version, self.checkpoint
        if value and key == f"{self._run_id}.version":
            self.version = max(self.version, WeightManifest.FromString(value).step)
        if value and key == f"{self._run_id}.checkpoint":
            self.checkpoint = max(self.checkpoint, CheckpointHead.FromString(value).step)
        if (self.version, self.checkpoint) != before:
            self._wake.set()

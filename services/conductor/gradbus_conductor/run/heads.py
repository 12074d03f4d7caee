"""The newest version and checkpoint of a run. The bucket `heads` is authoritative; messages announce a version sooner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gradbus.aio.tasks import background
from gradbus.bus import Buckets, Bus, View, subjects
from gradbus.v1.weights_pb2 import CheckpointHead, WeightManifest


class Heads:
    """Both only grow: a restarted trainer announces its versions again, which changes nothing."""

    def __init__(self, run_id: str, wake: asyncio.Event) -> None:
        self._run_id = run_id
        self._wake = wake
        self.version = -1
        self.checkpoint = -1

    @asynccontextmanager
    async def follow(self, bus: Bus) -> AsyncIterator[None]:
        """Keeps both heads up to date inside the block."""

        async def announced(payload: bytes) -> None:
            self._advance(WeightManifest.FromString(payload).step)

        heads = await bus.bucket(Buckets.HEADS)
        async with bus.subscribed(subjects.versions(self._run_id), announced), heads.view(f"{self._run_id}.>") as view:
            self._read(view)
            async with background(self._watch(view), "heads"):
                yield

    async def _watch(self, view: View) -> None:
        while True:
            await view.changed.wait()
            view.changed.clear()
            self._read(view)

    def _read(self, view: View) -> None:
        if value := view.get(f"{self._run_id}.version"):
            self._advance(WeightManifest.FromString(value).step)
        if value := view.get(f"{self._run_id}.checkpoint"):
            step = CheckpointHead.FromString(value).step
            if step > self.checkpoint:
                self.checkpoint = step
                self._wake.set()

    def _advance(self, step: int) -> None:
        if step > self.version:
            self.version = step
            self._wake.set()

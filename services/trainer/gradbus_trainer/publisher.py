"""Publishes versions in order, off the training step's path: one on its way while the next is computed."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from gradbus.background import background
from gradbus.bus import EventLog
from gradbus.faults import point
from gradbus.objects import ObjectStore
from gradbus.telemetry import span
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_trainer.collective import Offer
from gradbus_trainer.store_client import StoreClient
from gradbus_trainer.weights_io import Export, store_version, until_stored


class Publisher:
    """One run's versions under one term."""

    def __init__(
        self, store: StoreClient, objects: ObjectStore, events: EventLog, run_id: str, term: int, offer: Offer | None = None
    ) -> None:
        """`offer`, which keeps its own deadline, goes on beside the upload; a version is published when both are done."""
        self._store = store
        self._objects = objects
        self._events = events
        self._run_id = run_id
        self._term = term
        self._offer = offer
        self._last: asyncio.Task[WeightManifest] | None = None

    async def publish(self, export: Export) -> asyncio.Task[WeightManifest]:
        """Starts publishing, once the version before is out. Raises what that one raised."""
        await self.settle()
        self._last = asyncio.create_task(self._publish(export), name=f"publish {export.step}")
        return self._last

    async def settle(self) -> None:
        """Waits until everything handed in is published."""
        if self._last is not None:
            await self._last

    def cancel(self) -> None:
        """Gives up what is under way."""
        if self._last is not None:
            self._last.cancel()

    async def _publish(self, export: Export) -> WeightManifest:
        with span("publish_version", attributes={"gradbus.run.id": self._run_id, "gradbus.policy.version": export.step}):
            async with background(self._offer(export), "offer") if self._offer else nullcontext() as offered:
                manifest = await until_stored(
                    lambda: store_version(self._objects, self._run_id, self._term, export), f"version {export.step} of {self._run_id}"
                )
                if offered is not None:
                    await offered
            point("mid-publish")
            if await self._store.publish(manifest):
                text = f"version {export.step} has other bits than before the restart"
                self._events.emit("diverged", text, {"version": export.step, "digest": export.digest}, "warning")
        return manifest

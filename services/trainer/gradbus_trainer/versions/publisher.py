"""Publishes versions in order, off the training step's path: one on its way while the next is computed."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from gradbus import crash_points
from gradbus.aio.tasks import background
from gradbus.bus import EventLog
from gradbus.errors import ObjectMissingError
from gradbus.telemetry import Attributes, current_traceparent, span, weights_trouble
from gradbus.v1.weights_pb2 import VersionProbe, WeightManifest
from gradbus_trainer.broadcast.publisher import Offer
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.weights_io import Export, until_whole
from gradbus_trainer.versions.writer import VersionWriter


class Publisher:
    """One run's versions under one term."""

    def __init__(self, store: StoreClient, writer: VersionWriter, events: EventLog, run_id: str, offer: Offer | None = None) -> None:
        """`offer`, which keeps its own deadline, goes on beside the upload; a version is published when both are done."""
        self._store = store
        self._writer = writer
        self._events = events
        self._run_id = run_id
        self._offer = offer
        self._last: asyncio.Task[WeightManifest] | None = None
        self._before = ""

    async def publish(self, export: Export, whole: bool = False, probe: VersionProbe | None = None) -> asyncio.Task[WeightManifest]:
        """Starts publishing, once the version before is out; `whole`: its checkpoint follows. Raises what the one before raised."""
        await self.settle()
        self._last = asyncio.create_task(self._publish(export, whole, probe), name=f"publish {export.step}")
        return self._last

    async def settle(self) -> None:
        """Waits until everything handed in is published."""
        if self._last is not None:
            await self._last

    def cancel(self) -> None:
        """Gives up what is under way."""
        if self._last is not None:
            self._last.cancel()

    async def _publish(self, export: Export, whole: bool, probe: VersionProbe | None) -> WeightManifest:
        facts: Attributes = {"gradbus.run.id": self._run_id, "gradbus.policy.version": export.step, "gradbus.bytes": export.file.size_bytes}
        with span("publish_version", attributes=facts):
            what = f"version {export.step} of {self._run_id}"
            async with background(self._offer(export), "offer") if self._offer else nullcontext() as offered:
                manifest, diverged = await until_whole(lambda: self._stored_and_named(export, whole, probe, offered), what)
            self._writer.advance(export, manifest)
            if diverged:
                text = f"version {export.step} has other bits than before the restart"
                self._events.emit("diverged", text, {"version": export.step, "digest": export.digest}, "warning")
            self._compare(export)
        return manifest

    async def _stored_and_named(
        self, export: Export, whole: bool, probe: VersionProbe | None, offered: asyncio.Task[None] | None
    ) -> tuple[WeightManifest, bool]:
        manifest = await self._writer.store(export, whole)
        manifest.traceparent = current_traceparent()
        if probe is not None:
            manifest.probe.CopyFrom(probe)
        if offered is not None:
            await offered
        crash_points.reached("mid-publish")
        try:
            return manifest, await self._store.publish(manifest)
        except ObjectMissingError:
            self._writer.forget()
            raise

    def _compare(self, export: Export) -> None:
        """A step that had something to learn from and left the published weights as they were is told (R7)."""
        if export.digest == self._before and not export.noop:
            weights_trouble("unchanged")
            text = f"step {export.step - 1} changed no published weight; raise trainer.learning_rate, or publish in a wider weights.dtype"
            self._events.emit("unchanged", text, {"version": export.step}, "warning", key=f"unchanged:{export.step}")
        self._before = export.digest

"""Publishes versions in order: one is published while the next step is computed."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from gradbus import crash_points
from gradbus.aio.tasks import background, cancel_and_wait
from gradbus.bus import EventLog
from gradbus.errors import ObjectMissingError, RestartNeededError
from gradbus.telemetry import Attributes, current_traceparent, span, weights_trouble
from gradbus.v1.weights_pb2 import VersionProbe, WeightManifest
from gradbus_trainer.tensors.export import BroadcastExport, Export
from gradbus_trainer.versions.object_storage import until_complete
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter


class Publisher:
    """One run's versions under one term."""

    def __init__(
        self, store: StoreClient, writer: VersionWriter, events: EventLog, run_id: str, broadcast: BroadcastExport | None = None
    ) -> None:
        """`broadcast`, which keeps its own deadline, runs beside the upload; a version is published when both are done."""
        self._store = store
        self._writer = writer
        self._events = events
        self._run_id = run_id
        self._broadcast = broadcast
        self._newest: asyncio.Task[WeightManifest] | None = None
        self._digest_before = ""

    async def publish(self, export: Export, whole: bool = False, probe: VersionProbe | None = None) -> asyncio.Task[WeightManifest]:
        """Begins when the version before is published, whose error it raises; `whole` if a checkpoint follows."""
        await self.settle()
        self._newest = asyncio.create_task(self._publish(export, whole, probe), name=f"publish {export.step}")
        return self._newest

    async def settle(self) -> None:
        """Waits until the newest version is published. Raises its error."""
        if self._newest is not None:
            await self._newest

    async def close(self) -> None:
        """Ends the publication under way. Raises RestartNeededError if a thread of it goes on."""
        if self._newest is None:
            return
        await cancel_and_wait(self._newest)
        self._writer.end_chain()
        error = None if self._newest.cancelled() else self._newest.exception()
        if isinstance(error, RestartNeededError):
            raise error

    async def _publish(self, export: Export, whole: bool, probe: VersionProbe | None) -> WeightManifest:
        attributes: Attributes = {
            "gradbus.run.id": self._run_id,
            "gradbus.policy.version": export.step,
            "gradbus.bytes": export.file.size_bytes,
        }
        with span("publish_version", attributes=attributes):
            what = f"version {export.step} of {self._run_id}"
            async with background(self._broadcast(export), "broadcast") if self._broadcast else nullcontext() as broadcast:
                manifest, diverged = await until_complete(lambda: self._store_and_announce(export, whole, probe, broadcast), what)
            self._writer.advance(export, manifest)
            if diverged:
                text = f"version {export.step} has other bits than before the restart"
                self._events.emit("diverged", text, {"version": export.step, "digest": export.digest}, "warning")
            self._warn_unchanged(export)
        return manifest

    async def _store_and_announce(
        self, export: Export, whole: bool, probe: VersionProbe | None, broadcast: asyncio.Task[None] | None
    ) -> tuple[WeightManifest, bool]:
        manifest = await self._writer.store(export, whole)
        manifest.traceparent = current_traceparent()
        if probe is not None:
            manifest.probe.CopyFrom(probe)
        if broadcast is not None:
            await broadcast
        crash_points.reached("mid-publish")
        try:
            return manifest, await self._store.publish(manifest)
        except ObjectMissingError:
            self._writer.end_chain()
            raise

    def _warn_unchanged(self, export: Export) -> None:
        """Warns of a step that trained and yet left the published weights as they were (R7)."""
        if export.digest == self._digest_before and not export.noop:
            weights_trouble("unchanged")
            advice = "raise trainer.learning_rate, or set trainer.dtype and weights.dtype to fp32"
            text = f"step {export.step - 1} changed no published weight; {advice}"
            self._events.emit("unchanged", text, {"version": export.step}, "warning", key=f"unchanged:{export.step}")
        self._digest_before = export.digest

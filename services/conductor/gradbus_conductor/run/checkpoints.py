"""The newest checkpoint: its progress, and the archive, which takes over the log entries that the checkpoint covers."""

from __future__ import annotations

from gradbus.experience import ExperienceLog
from gradbus.experience.archive import ArchiveWriter
from gradbus.v1.weight_store_service_pb2 import GetCheckpointRequest, GetCheckpointResponse
from gradbus.v1.weights_pb2 import TrainerProgress
from gradbus_conductor.run.context import Ending, RunContext
from gradbus_conductor.run.heads import Heads
from gradbus_conductor.run.learning_signal import ending_of

_CALL_SECONDS = 10.0


class CheckpointArchiver:
    """Moves covered entries from the log to the archive whenever the checkpoint head advances."""

    def __init__(self, context: RunContext, log: ExperienceLog, heads: Heads) -> None:
        self._context = context
        self._heads = heads
        self._archive = ArchiveWriter(context.clients.objects, log, context.run_id)
        self._has_optimizer = False
        self.archived_step = -1
        """Step of the newest checkpoint whose entries are archived."""

    async def progress(self) -> TrainerProgress:
        """The training progress that the newest checkpoint holds; step 0 if there is none."""
        checkpoint = (await self._newest()).manifest
        return TrainerProgress(run_id=self._context.run_id, step=checkpoint.step, frontier=checkpoint.frontier)

    async def archive(self) -> None:
        """Archives up to the newest checkpoint."""
        if self._heads.checkpoint <= self.archived_step:
            return
        newest = await self._newest()
        checkpoint = newest.manifest
        await self._archive.advance(checkpoint.frontier)
        if checkpoint.step >= self._context.record.spec.schedule.steps:
            # The trainer emits the same event under the same key, unless it died after its last commit: then it never returns to it.
            data = {"step": checkpoint.step, "digest": newest.digest}
            events = self._context.status.events
            events.emit("checkpoint", f"checkpoint {checkpoint.step}", data, key=f"checkpoint:{checkpoint.step}")
        self.archived_step = checkpoint.step
        self._has_optimizer = bool(checkpoint.optimizer)

    async def ending(self) -> Ending:
        """How the run ends, now that all its steps are archived."""
        # AdamW has no state before its first step, so a checkpoint without optimizer state has trained nothing.
        return await ending_of(self._archive.reader, learned=self._has_optimizer)

    async def _newest(self) -> GetCheckpointResponse:
        if self._heads.checkpoint < 0:
            return GetCheckpointResponse()
        request = GetCheckpointRequest(run_id=self._context.run_id)
        return await self._context.clients.weight_store.GetCheckpoint(request, timeout=_CALL_SECONDS)

"""Trains the runs this process is assigned to, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gradbus.bus import Buckets, EventLog, Lease
from gradbus.control.runs import RunRecord
from gradbus.errors import ModelError, SettingsError, TrainingError
from gradbus.experience import ExperienceLog
from gradbus.objects import materialise
from gradbus.process import WorkerClients
from gradbus.telemetry import export_metrics, get_logger, run_metrics
from gradbus_trainer.broadcast.publisher import BroadcastPublisher, Offer
from gradbus_trainer.checkpoints import restore
from gradbus_trainer.learners.registry import Learners
from gradbus_trainer.settings import Settings
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.step.log_reader import LogReader
from gradbus_trainer.telemetry.step_metrics import StepRecorder
from gradbus_trainer.telemetry.step_traces import StepSampler, StepTraces
from gradbus_trainer.train_loop import TrainLoop, TrainLoopParts
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.scratch import Scratch
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter

_log = get_logger(__name__)
_LEASE_SECONDS = 0.5


class TrainerService:
    """A trainer process: one run at a time, each resumed from its newest checkpoint."""

    def __init__(self, settings: Settings, clients: WorkerClients, learners: Learners) -> None:
        self._settings = settings
        self._clients = clients
        self._learners = learners
        self._scratch = Scratch(settings.cache_dir / "trainer" / settings.worker_id)

    async def serve_run(self, record: RunRecord) -> None:
        """Serves the run until it is cancelled."""
        lease = await self._lease(record.run_id)
        try:
            await self._train(record, lease)
        except (ModelError, SettingsError, TrainingError):
            self._clients.heartbeat.presence.fatal = True
            raise
        finally:
            await lease.release()
        # Nothing more to do, but the run is ours until the conductor has ended it.
        await asyncio.Event().wait()

    async def _train(self, record: RunRecord, lease: Lease) -> None:
        spec, run_id = record.spec, record.run_id
        store = StoreClient(self._clients.weight_store, run_id)
        await store.open_term(lease.term)
        folder = await materialise(self._clients.objects, spec.model.files or {}, self._settings.cache_dir / "models")
        learner = await asyncio.to_thread(self._learners.open, folder, spec)
        state = await restore(store, self._clients.objects, learner, self._scratch, spec.schedule.max_staleness)
        log = ExperienceLog(self._clients.buffer, run_id)
        reader = LogReader(self._clients.bus, log, run_id, collector_for(spec, state.frontier), spec.algorithm)
        events = EventLog(self._clients.bus, run_id)
        trained = {"trained_parameters": learner.trained_parameters}
        _log.info("learner_opened", run_id=run_id, step=state.step, **trained)
        events.emit("learner", f"{learner.trained_parameters:,} trainable parameters", trained, key="learner")
        writer = VersionWriter(self._clients.objects, run_id, lease.term, spec.weights)
        async with reader.reading(), self._offers(record, events, lease) as offer, _shown(run_id) as numbers:
            publisher = Publisher(store, writer, events, run_id, offer)
            parts = TrainLoopParts(
                learner=learner,
                reader=reader,
                store=store,
                objects=self._clients.objects,
                scratch=self._scratch,
                publisher=publisher,
                events=events,
                heartbeat=self._clients.heartbeat,
                lease=lease,
                traces=StepTraces(run_id, lease.term, StepSampler(self._settings.trace_steps, self._settings.trace_step_seconds)),
                numbers=numbers,
                checkpoint_bytes=self._settings.checkpoint_bytes,
            )
            await TrainLoop(record, parts, state).run()
        await events.flush()
        _log.info("trained", run_id=run_id, step=state.step)

    @asynccontextmanager
    async def _offers(self, record: RunRecord, events: EventLog, lease: Lease) -> AsyncIterator[Offer | None]:
        if record.spec.weights.transport != "broadcast":
            yield None
            return
        collective = BroadcastPublisher(self._clients.weight_store, events, record.run_id, lease.term, self._settings.device)
        try:
            yield collective.offer
        finally:
            collective.close()

    async def _lease(self, run_id: str) -> Lease:
        leases = await self._clients.bus.bucket(Buckets.LEASES)
        while (lease := await Lease.acquire(leases, f"trainer.{run_id}", self._settings.worker_id)) is None:
            _log.info("waiting_for_lease", run_id=run_id)
            await asyncio.sleep(_LEASE_SECONDS)
        return lease


@asynccontextmanager
async def _shown(run_id: str) -> AsyncIterator[StepRecorder]:
    with export_metrics(run_metrics(run_id)) as numbers:
        yield StepRecorder(numbers)

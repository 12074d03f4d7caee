"""Trains the runs this process is assigned to, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gradbus.buffer import ExperienceLog
from gradbus.bus import Buckets, EventLog, Lease
from gradbus.errors import ModelError, SettingsError, TrainingError
from gradbus.objects import materialise
from gradbus.process import WorkerWires
from gradbus.runs import RunRecord
from gradbus.telemetry import get_logger, numbers_of, shown
from gradbus_trainer.checkpoints import restore
from gradbus_trainer.collective import Collective, Offer
from gradbus_trainer.collector import collector_for
from gradbus_trainer.fold import Fold, FoldParts
from gradbus_trainer.learners import Learners
from gradbus_trainer.log_reader import LogReader
from gradbus_trainer.publisher import Publisher
from gradbus_trainer.scratch import Scratch
from gradbus_trainer.settings import Settings
from gradbus_trainer.step_numbers import StepNumbers
from gradbus_trainer.step_traces import StepSampler, StepTraces
from gradbus_trainer.store_client import StoreClient
from gradbus_trainer.version_writer import VersionWriter

_log = get_logger(__name__)
_LEASE_SECONDS = 0.5


class TrainerService:
    """A trainer process: one run at a time, each resumed from its newest checkpoint."""

    def __init__(self, settings: Settings, wires: WorkerWires, learners: Learners) -> None:
        self._settings = settings
        self._wires = wires
        self._learners = learners
        self._scratch = Scratch(settings.cache_dir / "trainer" / settings.worker_id)

    async def serve_run(self, record: RunRecord) -> None:
        """Serves the run until it is cancelled."""
        lease = await self._lease(record.run_id)
        try:
            await self._train(record, lease)
        except (ModelError, SettingsError, TrainingError):
            self._wires.station.presence.fatal = True
            raise
        finally:
            await lease.release()
        # Nothing more to do, but the run is ours until the conductor has ended it.
        await asyncio.Event().wait()

    async def _train(self, record: RunRecord, lease: Lease) -> None:
        spec, run_id = record.spec, record.run_id
        store = StoreClient(self._wires.weight_store, run_id)
        await store.open_term(lease.term)
        folder = await materialise(self._wires.objects, spec.model.files or {}, self._settings.cache_dir / "models")
        learner = await asyncio.to_thread(self._learners.open, folder, spec)
        state = await restore(store, self._wires.objects, learner, self._scratch, spec.schedule.max_staleness)
        log = ExperienceLog(self._wires.buffer, run_id)
        reader = LogReader(self._wires.bus, log, run_id, collector_for(spec, state.frontier), spec.algorithm)
        events = EventLog(self._wires.bus, run_id)
        trained = {"trained_parameters": learner.trained_parameters}
        _log.info("learner_opened", run_id=run_id, step=state.step, **trained)
        events.emit("learner", f"a step moves {learner.trained_parameters:,} numbers", trained, key="learner")
        writer = VersionWriter(self._wires.objects, run_id, lease.term, spec.weights)
        async with reader.reading(), self._offers(record, events, lease) as offer, _shown(run_id) as numbers:
            publisher = Publisher(store, writer, events, run_id, offer)
            parts = FoldParts(
                learner=learner,
                reader=reader,
                store=store,
                objects=self._wires.objects,
                scratch=self._scratch,
                publisher=publisher,
                events=events,
                station=self._wires.station,
                lease=lease,
                traces=StepTraces(run_id, lease.term, StepSampler(self._settings.trace_steps, self._settings.trace_step_seconds)),
                numbers=numbers,
                checkpoint_bytes=self._settings.checkpoint_bytes,
            )
            await Fold(record, parts, state).run()
        await events.flush()
        _log.info("trained", run_id=run_id, step=state.step)

    @asynccontextmanager
    async def _offers(self, record: RunRecord, events: EventLog, lease: Lease) -> AsyncIterator[Offer | None]:
        if record.spec.weights.transport != "collective":
            yield None
            return
        collective = Collective(self._wires.weight_store, events, record.run_id, lease.term, self._settings.device)
        try:
            yield collective.offer
        finally:
            collective.close()

    async def _lease(self, run_id: str) -> Lease:
        leases = await self._wires.bus.bucket(Buckets.LEASES)
        while (lease := await Lease.acquire(leases, f"trainer.{run_id}", self._settings.worker_id)) is None:
            _log.info("waiting_for_lease", run_id=run_id)
            await asyncio.sleep(_LEASE_SECONDS)
        return lease


@asynccontextmanager
async def _shown(run_id: str) -> AsyncIterator[StepNumbers]:
    with shown(numbers_of(run_id)) as numbers:
        yield StepNumbers(numbers)

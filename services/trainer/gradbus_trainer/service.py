"""Trains the runs this process is assigned to, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gradbus.aio.threads import in_run_thread
from gradbus.algorithms import Algorithm, algorithm_of, metric_names_of
from gradbus.bus import EventLog
from gradbus.control.failures import storable
from gradbus.control.runs import RunRecord
from gradbus.errors import ModelError, SettingsError, TrainingError
from gradbus.experience import ExperienceLog
from gradbus.objects import materialise
from gradbus.process import WorkerClients
from gradbus.process.device_turns import DeviceTurns
from gradbus.process.worker_device import WorkerDevice
from gradbus.spec import RunSpec
from gradbus.telemetry import export_metrics, get_logger, run_metrics
from gradbus_kernels.models.dtypes import DTYPES
from gradbus_kernels.models.loading import enough_memory
from gradbus_trainer.broadcast.publisher import BroadcastPublisher
from gradbus_trainer.checkpoints.state import TrainerState, restore
from gradbus_trainer.checkpoints.writer import CheckpointWriter
from gradbus_trainer.learners.base import Learner
from gradbus_trainer.learners.device_tenant import LearnerTenant
from gradbus_trainer.learners.registry import Learners
from gradbus_trainer.run_control import RunControl
from gradbus_trainer.settings import Settings
from gradbus_trainer.step.collector import collector_for
from gradbus_trainer.step.live_log import LiveLog, missing_reporter
from gradbus_trainer.telemetry.learning_alarms import LearningAlarms
from gradbus_trainer.telemetry.step_metrics import StepMetricsRecorder
from gradbus_trainer.telemetry.step_report import StepReporter
from gradbus_trainer.telemetry.step_traces import StepSampler, StepTraces
from gradbus_trainer.tensors.base_folder import BaseFolder
from gradbus_trainer.tensors.export import BroadcastExport
from gradbus_trainer.tensors.scratch import Scratch, TensorFile
from gradbus_trainer.train_loop import TrainLoop, TrainLoopParts
from gradbus_trainer.versions.object_storage import storage_trouble_told
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.writer import VersionWriter, transport_for

_log = get_logger(__name__)


class TrainerService:
    """A trainer process: one run at a time, each resumed from its newest checkpoint."""

    def __init__(self, settings: Settings, clients: WorkerClients, learners: Learners) -> None:
        self._settings = settings
        self._clients = clients
        self._learners = learners
        self._scratch = Scratch(settings.cache_dir / "trainer" / settings.worker_id)
        clients.heartbeat.presence.queue = settings.queue
        self._device = WorkerDevice(clients.bus, clients.heartbeat, settings.device, settings.device_name)

    async def serve_run(self, record: RunRecord) -> None:
        """Serves the run until it is cancelled."""
        if self._device.is_held:  # since an attempt that failed: whoever waits comes first
            await in_run_thread(self.release, "release device")
        heartbeat, run_id = self._clients.heartbeat, record.run_id
        control = await RunControl.acquire(self._clients.bus, run_id, heartbeat)
        try:
            self._learners.check_failures(run_id)
            with enough_memory(), storage_trouble_told(self._tell_trouble):
                await self._train(record, control)
        except (ModelError, SettingsError, TrainingError):
            heartbeat.presence.fatal = True
            raise
        finally:
            self._learners.note_failure(run_id, heartbeat.presence.reached)
            await control.release()
        # The run stays assigned to this trainer until the conductor has ended it.
        await asyncio.Event().wait()

    def _tell_trouble(self, trouble: str) -> None:
        """Shows it as what the run waits for; the trainer goes on by itself."""
        self._clients.heartbeat.presence.trouble = storable(trouble)
        self._clients.heartbeat.publish_now()

    def release(self) -> None:
        """See `RunServer.release`."""
        self._learners.release()
        self._device.give_back()

    async def _train(self, record: RunRecord, control: RunControl) -> None:
        spec, run_id, objects = record.spec, record.run_id, self._clients.objects
        store = StoreClient(self._clients.weight_store, run_id)
        await store.open_term(control.term)
        folder = await materialise(objects, spec.model.files or {}, self._settings.cache_dir / "models")
        lease = await self._device.take_for(spec)
        learner, frozen = await in_run_thread(lambda: self._open(folder, spec), "open learner")
        state = await restore(store, objects, learner, self._scratch, spec)
        events = EventLog(self._clients.bus, run_id)
        _report_learner(run_id, learner, state, events)
        algorithm = algorithm_of(spec)
        source = self._live_log(record, algorithm, state)
        weights = transport_for(spec.weights, objects, self._settings.folder_deltas)
        writer = VersionWriter(objects, run_id, control.term, weights, frozen)
        names = metric_names_of(spec)
        async with source.reading(), self._broadcasts(record, events, control.term) as broadcast, _exported(run_id, names) as recorder:
            parts = TrainLoopParts(
                source=source,
                learner=learner,
                turns=DeviceTurns(lease, LearnerTenant(learner)),
                scratch=self._scratch,
                publisher=Publisher(store, writer, events, run_id, broadcast),
                checkpoints=CheckpointWriter(store, objects, events, record, control.term, self._settings.checkpoint_bytes),
                control=control,
                reporter=StepReporter(events, self._clients.heartbeat, recorder, names, LearningAlarms(spec)),
                traces=StepTraces(run_id, control.term, StepSampler(self._settings.trace_steps, self._settings.trace_step_seconds)),
            )
            await TrainLoop(record, parts, state).run()
        await events.flush()
        _log.info("run_trained", run_id=run_id, step=state.step)

    def _open(self, folder: Path, spec: RunSpec) -> tuple[Learner, TensorFile | None]:
        """A learner that has loaded the folder, and what its versions carry along. Raises ModelError if it would publish another model.

        Adapters need neither: their base never leaves the folder.
        """
        learner = self._learners.open(folder, spec)
        if spec.trainer.lora is not None:
            return learner, None
        base = BaseFolder(folder, scores=spec.kind == "reward_model")
        base.check_identity(learner.weights(), DTYPES[spec.version_dtype])
        return learner, base.write_frozen(self._scratch)

    def _live_log(self, record: RunRecord, algorithm: Algorithm, state: TrainerState) -> LiveLog:
        report_missing = missing_reporter(self._clients.bus, record.run_id, state.frontier)
        collector = collector_for(record.spec, state.frontier)
        return LiveLog(record.run_id, ExperienceLog(self._clients.buffer, record.run_id), algorithm, collector, report_missing)

    @asynccontextmanager
    async def _broadcasts(self, record: RunRecord, events: EventLog, term: int) -> AsyncIterator[BroadcastExport | None]:
        if record.spec.weights.transport != "broadcast":
            yield None
            return
        publisher = BroadcastPublisher(self._clients.weight_store, events, record.run_id, term, self._settings.device)
        try:
            yield publisher.broadcast
        finally:
            publisher.close()


def _report_learner(run_id: str, learner: Learner, state: TrainerState, events: EventLog) -> None:
    data = {"trained_parameters": learner.trained_parameters}
    _log.info("learner_opened", run_id=run_id, step=state.step, **data)
    events.emit("learner", f"{learner.trained_parameters:,} trainable parameters", data, key="learner")


@asynccontextmanager
async def _exported(run_id: str, names: Sequence[str]) -> AsyncIterator[StepMetricsRecorder]:
    with export_metrics(run_metrics(run_id)) as metrics:
        yield StepMetricsRecorder(metrics, names)

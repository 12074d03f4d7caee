"""Prepares engine, prompts and versions for each run that the worker is assigned to, and serves it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gradbus.aio.tasks import background
from gradbus.aio.threads import in_run_thread
from gradbus.bus import Bucket, Buckets
from gradbus.control.runs import RunRecord, RunStatus
from gradbus.datasets.stored import open_rows
from gradbus.experience import GroupStore
from gradbus.objects import materialise
from gradbus.process import WorkerClients
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus.process.device_lease import DeviceLease
from gradbus.process.worker_device import WorkerDevice
from gradbus.rpc import open_channel
from gradbus.spec import EnvironmentSpec
from gradbus.telemetry import export_metrics, run_metrics
from gradbus.tokenizer.launcher import ForkServer
from gradbus.tokenizer.tokenizer import Deadlines, Tokenizer, limits_of
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub
from gradbus_rollout.broadcast.process import MemberConfig
from gradbus_rollout.broadcast.receiver import BroadcastReceiver
from gradbus_rollout.buffer_wait import BufferWait
from gradbus_rollout.dataset_worker import DatasetWorker, DatasetWorkerParts
from gradbus_rollout.engines.base import Engine
from gradbus_rollout.engines.determinism import check_determinism
from gradbus_rollout.engines.registry import EngineFactory
from gradbus_rollout.engines.watchdog import WatchedEngine
from gradbus_rollout.episodes.attempt import PlayerParts
from gradbus_rollout.episodes.codec import TurnCodec
from gradbus_rollout.episodes.environment import EnvironmentClient, RunEnvironment
from gradbus_rollout.episodes.episode import EpisodeLimits
from gradbus_rollout.episodes.journal import Journals
from gradbus_rollout.episodes.sampler import EpisodeSampler
from gradbus_rollout.run_end import is_over
from gradbus_rollout.run_faults import fatal_for_run
from gradbus_rollout.settings import Settings
from gradbus_rollout.tasks.prompts import PromptTable
from gradbus_rollout.tasks.sampler import PromptTables, SingleTurnSampler, TaskSampler
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_rollout.worker import RolloutWorker, WorkerParts

_STATUS_SECONDS = 0.2
_DEADLINES = Deadlines(load=30, call=10)


@dataclass(frozen=True, slots=True)
class _Data:
    """What a run's model folder and data give, without an engine."""

    folder: Path
    tokenizer: Tokenizer
    tables: PromptTables
    environment: RunEnvironment | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What sampling needs."""

    data: _Data
    engine: WatchedEngine
    lease: DeviceLease | None


class RolloutService:
    """Serves one run at a time. When it is cancelled, its claims go back to the conductor."""

    def __init__(self, settings: Settings, clients: WorkerClients, engines: EngineFactory, tokenizers: ForkServer) -> None:
        self._settings = settings
        self._clients = clients
        self._engines = engines
        self._tokenizers = tokenizers
        self._device = WorkerDevice(clients.bus, clients.heartbeat, settings.device, settings.device_name)

    async def serve_run(self, record: RunRecord) -> None:
        """Serves the run until it is cancelled.

        Raises DatasetError and ModelError, after marking the failure as fatal for the run: every other worker would fail in the same way.
        """
        if self._device.is_held:  # since an attempt that failed: whoever waits comes first
            await in_run_thread(self.release, "release device")
        async with AsyncExitStack() as opened:
            with fatal_for_run(self._clients.heartbeat.presence):
                data = await self._data(record, opened)
                prepared = None if record.spec.trains_given else await self._prepared(record, data, opened)
            self._clients.heartbeat.show_preparing("")
            # A failure from here on may be this machine's alone, so another worker may serve the run.
            if prepared is None:
                groups = GroupStore(self._clients.buffer, record.run_id)
                parts = DatasetWorkerParts(self._clients.bus, groups, data.tables.training, data.tables.evaluation, self._clients.heartbeat)
                await DatasetWorker(record, parts).serve()
            else:
                await self._serve(record, prepared)

    def release(self) -> None:
        """See `RunServer.release`."""
        self._engines.release()
        self._device.give_back()

    async def _data(self, record: RunRecord, opened: AsyncExitStack) -> _Data:
        """Opens the run's tokenizer, which `opened` closes, and checks its prompts."""
        show_preparing = self._clients.heartbeat.show_preparing
        runs = await self._clients.bus.bucket(Buckets.RUNS)
        show_preparing("fetches the model")
        folder = await materialise(self._clients.objects, record.spec.model.files or {}, self._settings.cache_dir / "models")
        limits, section = limits_of(record.spec, record.created_unix_ns), record.spec.environment
        environment = None if section is None else await self._environment(record, section, opened)
        show_preparing("reads the tokenizer and the prompts")
        turns = None if environment is None else environment.turn_settings
        tokenizer = await Tokenizer.open(self._tokenizers, folder, limits, _DEADLINES, turns)
        opened.push_async_callback(tokenizer.close)
        status = await self._status(record, runs)
        training = await self._table(tokenizer, status.prompts)
        evaluation = await self._table(tokenizer, status.evaluation_prompts) if status.evaluation_prompts else None
        return _Data(folder, tokenizer, PromptTables(training, evaluation), environment)

    async def _environment(self, record: RunRecord, section: EnvironmentSpec, opened: AsyncExitStack) -> RunEnvironment:
        """Connects to the run's environment, and asks what it is."""
        heartbeat, settings = self._clients.heartbeat, self._settings
        heartbeat.show_preparing("asks the environment for its tools")
        address = settings.environment_address if section.agent is None else settings.agent
        channel = open_channel(address, settings.rpc_token.get_secret_value(), settings.identity)
        opened.push_async_callback(channel.close)
        client = EnvironmentClient(EnvironmentServiceStub(channel), address, record, heartbeat.presence)
        await opened.enter_async_context(background(client.keep_alive(), "keep alive"))
        environment = RunEnvironment(section, client, await client.describe())
        if record.spec.deterministic:
            environment.check_determinism()
        heartbeat.presence.determinism = environment.determinism
        return environment

    async def _prepared(self, record: RunRecord, data: _Data, opened: AsyncExitStack) -> _Prepared:
        """Opens the run's engine, which `opened` closes."""
        lease = await self._device.take_for(record.spec)
        self._clients.heartbeat.show_preparing(f"starts its {record.spec.rollout.engine} engine")
        engine = self._watched(await self._engines.open(data.folder, record.spec, data.tokenizer.stop_token_ids))
        opened.push_async_callback(engine.close)
        return _Prepared(data, engine, lease)

    async def _serve(self, record: RunRecord, prepared: _Prepared) -> None:
        engine = prepared.engine
        if record.spec.is_deterministic:
            await self._check_determinism(record, prepared)
        versions = VersionLoader(
            self._clients.bus, self._clients.objects, self._clients.weight_store, record.run_id, self._settings.cache_dir
        )
        self._clients.heartbeat.presence.engine = engine.name
        groups = GroupStore(self._clients.buffer, record.run_id)
        async with versions.followed(), self._receiving(record):
            with export_metrics(run_metrics(record.run_id)) as metrics:
                sampler = self._sampler(record, prepared)
                parts = WorkerParts(
                    self._clients.bus,
                    groups,
                    engine,
                    versions,
                    sampler,
                    self._clients.heartbeat,
                    metrics,
                    prepared.lease,
                    self._settings.trace_texts,
                )
                await RolloutWorker(record, parts).serve()

    def _sampler(self, record: RunRecord, prepared: _Prepared) -> TaskSampler:
        data = prepared.data
        if data.environment is None:
            return SingleTurnSampler(record, prepared.engine, data.tables, self._clients.heartbeat.presence)
        limits = EpisodeLimits.of(record.spec, data.environment.section, data.tokenizer.context_length)
        journals = None
        if data.environment.has_journal:
            buffer, over = BufferWait(self._clients.heartbeat.presence), partial(is_over, self._clients.bus, record.run_id)
            journals = Journals(self._clients.buffer, buffer, is_read=not data.environment.is_seeded, is_over=over)
        parts = PlayerParts(prepared.engine, TurnCodec(data.tokenizer), data.environment.client, limits, journals)
        return EpisodeSampler(record, parts, data.tables, data.environment.description)

    def _receiving(self, record: RunRecord) -> AbstractAsyncContextManager[None]:
        """Receives the run's weight broadcasts inside the block, if its spec asks for that transport."""
        if record.spec.weights.transport != "broadcast":
            return nullcontext()
        python = self._engines.broadcast_python(record.spec.rollout.engine)
        host = BroadcastSettings().host
        member = MemberConfig(self._clients.heartbeat.presence.worker, host, self._settings.device, python, self._settings.cache_dir)
        return BroadcastReceiver(self._clients, record.run_id, member).receiving()

    def _watched(self, engine: Engine) -> WatchedEngine:
        return WatchedEngine(engine, self._settings.engine_progress_seconds)

    async def _check_determinism(self, record: RunRecord, prepared: _Prepared) -> None:
        """Samples the base model and compares the bits with other workers'; for LoRA runs, in a second engine without adapters."""
        folder, engine = prepared.data.folder, prepared.engine
        stop_ids = prepared.data.tokenizer.stop_token_ids
        lora = record.spec.trainer.lora
        checked = engine if lora is None else self._watched(await self._engines.open_base(folder, record.spec, stop_ids))
        try:
            await checked.load(await asyncio.to_thread(lambda: sorted(folder.glob("*.safetensors"))), 0)
            (first,) = await prepared.data.tables.training.ids([0])
            await check_determinism(checked, first, record.run_id, await self._clients.bus.bucket(Buckets.PROBES))
        finally:
            if checked is not engine:
                await checked.close()

    async def _table(self, tokenizer: Tokenizer, digest: str) -> PromptTable:
        return await PromptTable.open(tokenizer, await open_rows(self._clients.objects, digest, self._settings.cache_dir))

    async def _status(self, record: RunRecord, runs: Bucket) -> RunStatus:
        """Waits for the conductor's status with the digest of the prompts. It is written before this worker is assigned."""
        while True:
            stored = await runs.get(f"{record.run_id}.status")
            if stored is not None and (status := RunStatus.model_validate_json(stored.value)).prompts:
                return status
            await asyncio.sleep(_STATUS_SECONDS)

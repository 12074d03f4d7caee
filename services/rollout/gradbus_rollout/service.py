"""Prepares an engine for each run the worker is assigned to, and serves it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from gradbus.bus import Bucket, Buckets
from gradbus.control.runs import RunRecord, RunStatus
from gradbus.errors import DatasetError, ModelError
from gradbus.experience import GroupStore
from gradbus.objects import materialise
from gradbus.process import WorkerClients
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus.telemetry import export_metrics, run_metrics
from gradbus_rollout.broadcast.process import MemberConfig
from gradbus_rollout.broadcast.receiver import BroadcastReceiver
from gradbus_rollout.engines.base import Engine
from gradbus_rollout.engines.probe import check_probe
from gradbus_rollout.engines.registry import Engines
from gradbus_rollout.engines.sglang import SGLangSettings
from gradbus_rollout.engines.watchdog import WatchedEngine
from gradbus_rollout.settings import Settings
from gradbus_rollout.tasks.prompt_table import PromptTable
from gradbus_rollout.tasks.prompts import PromptEncoder
from gradbus_rollout.weights.versions import Versions
from gradbus_rollout.worker import RolloutWorker, WorkerParts

_STATUS_SECONDS = 0.2


class RolloutService:
    """A worker process: one run at a time. What is in flight when it stops is handed back."""

    def __init__(self, settings: Settings, clients: WorkerClients, engines: Engines) -> None:
        self._settings = settings
        self._clients = clients
        self._engines = engines

    async def serve_run(self, record: RunRecord) -> None:
        """Serves the run until it is cancelled."""
        runs = await self._clients.bus.bucket(Buckets.RUNS)
        try:
            folder = await materialise(self._clients.objects, record.spec.model.files or {}, self._settings.cache_dir / "models")
            rollout = record.spec.rollout
            encoder = await asyncio.to_thread(
                PromptEncoder, folder, rollout.max_new_tokens, rollout.max_prompt_tokens, rollout.stop_token_ids
            )
            status = await self._status(record, runs)
            training = await self._table(encoder, status.prompts)
            evaluation = await self._table(encoder, status.evaluation_prompts) if status.evaluation_prompts else None
            engine = self._watched(await self._engines.open(folder, record.spec, encoder))
        except (DatasetError, ModelError):
            self._clients.heartbeat.presence.fatal = True
            raise
        try:
            # What fails from here on may be this machine's fault alone: another worker serves the run.
            if record.spec.is_deterministic:
                await self._probed(engine, folder, record, encoder, training)
            versions = Versions(
                self._clients.bus, self._clients.objects, self._clients.weight_store, record.run_id, self._settings.cache_dir
            )
            self._clients.heartbeat.presence.engine = engine.name
            groups = GroupStore(self._clients.buffer, record.run_id)
            async with versions.followed(), self._receiving(record):
                with export_metrics(run_metrics(record.run_id)) as numbers:
                    parts = WorkerParts(self._clients.bus, groups, engine, versions, training, evaluation, self._clients.heartbeat, numbers)
                    await RolloutWorker(record, parts).serve()
        finally:
            await engine.close()

    def _receiving(self, record: RunRecord) -> AbstractAsyncContextManager[None]:
        if record.spec.weights.transport != "broadcast":
            return nullcontext()
        python = SGLangSettings().python if record.spec.rollout.engine == "sglang" else sys.executable
        host = BroadcastSettings().host
        seat = MemberConfig(self._clients.heartbeat.presence.worker, host, self._settings.device, python, self._settings.cache_dir)
        return BroadcastReceiver(self._clients, record.run_id, seat).receiving()

    def _watched(self, engine: Engine) -> WatchedEngine:
        return WatchedEngine(engine, self._settings.engine_progress_seconds)

    async def _probed(self, engine: Engine, folder: Path, record: RunRecord, encoder: PromptEncoder, training: PromptTable) -> None:
        """Compares the base model with what other workers hold; where the run's versions are adapters, in an engine of its own."""
        lora = record.spec.trainer.lora
        probed = engine if lora is None else self._watched(await self._engines.open_base(folder, record.spec, encoder))
        try:
            await probed.load(await asyncio.to_thread(lambda: sorted(folder.glob("*.safetensors"))), 0)
            await check_probe(probed, training.ids(0), record.run_id, await self._clients.bus.bucket(Buckets.PROBES))
        finally:
            if probed is not engine:
                await probed.close()

    async def _table(self, encoder: PromptEncoder, digest: str) -> PromptTable:
        content = await self._clients.objects.get_blob(digest)
        return await asyncio.to_thread(PromptTable, encoder, content)

    async def _status(self, record: RunRecord, runs: Bucket) -> RunStatus:
        """The conductor's word on where the prompts are; it comes before the worker's assignment."""
        while True:
            stored = await runs.get(f"{record.run_id}.status")
            if stored is not None and (status := RunStatus.model_validate_json(stored.value)).prompts:
                return status
            await asyncio.sleep(_STATUS_SECONDS)

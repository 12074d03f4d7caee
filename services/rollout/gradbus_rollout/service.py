"""Prepares engine, prompts and versions for each run that the worker is assigned to, and serves it."""

from __future__ import annotations

import asyncio
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
from gradbus_rollout.engines.determinism import check_determinism
from gradbus_rollout.engines.registry import EngineFactory
from gradbus_rollout.engines.watchdog import WatchedEngine
from gradbus_rollout.settings import Settings
from gradbus_rollout.tasks.prompts import PromptEncoder, PromptTable
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_rollout.worker import RolloutWorker, WorkerParts

_STATUS_SECONDS = 0.2


class RolloutService:
    """Serves one run at a time. When it is cancelled, its claims go back to the conductor."""

    def __init__(self, settings: Settings, clients: WorkerClients, engines: EngineFactory) -> None:
        self._settings = settings
        self._clients = clients
        self._engines = engines

    async def serve_run(self, record: RunRecord) -> None:
        """Serves the run until it is cancelled.

        Raises DatasetError and ModelError, after marking the failure as fatal for the run: every other worker would fail in the same way.
        """
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
            engine = self._watched(await self._engines.open(folder, record.spec, encoder.stop_token_ids))
        except (DatasetError, ModelError):
            self._clients.heartbeat.presence.fatal = True
            raise
        try:
            # A failure from here on may be this machine's alone, so another worker may serve the run.
            if record.spec.is_deterministic:
                await self._check_determinism(engine, folder, record, encoder, training)
            versions = VersionLoader(
                self._clients.bus, self._clients.objects, self._clients.weight_store, record.run_id, self._settings.cache_dir
            )
            self._clients.heartbeat.presence.engine = engine.name
            groups = GroupStore(self._clients.buffer, record.run_id)
            async with versions.followed(), self._receiving(record):
                with export_metrics(run_metrics(record.run_id)) as metrics:
                    parts = WorkerParts(self._clients.bus, groups, engine, versions, training, evaluation, self._clients.heartbeat, metrics)
                    await RolloutWorker(record, parts).serve()
        finally:
            await engine.close()

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

    async def _check_determinism(
        self, engine: Engine, folder: Path, record: RunRecord, encoder: PromptEncoder, training: PromptTable
    ) -> None:
        """Samples the base model and compares the bits with other workers'; for LoRA runs, in a second engine without adapters."""
        lora = record.spec.trainer.lora
        checked = engine if lora is None else self._watched(await self._engines.open_base(folder, record.spec, encoder.stop_token_ids))
        try:
            await checked.load(await asyncio.to_thread(lambda: sorted(folder.glob("*.safetensors"))), 0)
            await check_determinism(checked, training.ids(0), record.run_id, await self._clients.bus.bucket(Buckets.PROBES))
        finally:
            if checked is not engine:
                await checked.close()

    async def _table(self, encoder: PromptEncoder, digest: str) -> PromptTable:
        content = await self._clients.objects.get_blob(digest)
        return await asyncio.to_thread(PromptTable, encoder, content)

    async def _status(self, record: RunRecord, runs: Bucket) -> RunStatus:
        """Waits for the conductor's status with the digest of the prompts. It is written before this worker is assigned."""
        while True:
            stored = await runs.get(f"{record.run_id}.status")
            if stored is not None and (status := RunStatus.model_validate_json(stored.value)).prompts:
                return status
            await asyncio.sleep(_STATUS_SECONDS)

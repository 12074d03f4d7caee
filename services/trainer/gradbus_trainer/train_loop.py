"""The trainer as a fold over the experience log.

    restore ─▶ [ read step ─▶ train ─▶ export ─▶ publish (behind) ─▶ checkpoint, now and then (behind) ], for every step

What it computes depends on its checkpoint, the spec and the groups it reads, and on nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from gradbus.bus import EventLog, Lease
from gradbus.control.runs import RunRecord
from gradbus.errors import FencedError, StorageError
from gradbus.objects import ObjectStore
from gradbus.process import WorkerHeartbeat
from gradbus.telemetry import get_logger, observe, span
from gradbus_trainer.checkpoints import Snapshot, TrainerState, commit
from gradbus_trainer.learners.base import Learner, StepMetrics
from gradbus_trainer.step.batch_builder import BatchStats, build_batch
from gradbus_trainer.step.collector import Collected
from gradbus_trainer.step.log_reader import LogReader
from gradbus_trainer.telemetry.step_metrics import StepRecorder
from gradbus_trainer.telemetry.step_traces import StepTrace, StepTraces
from gradbus_trainer.versions.publisher import Publisher
from gradbus_trainer.versions.scratch import Scratch
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.weights_io import VERSION_DTYPES, Export, export_version, fingerprint, until_stored

_log = get_logger(__name__)
_GATE_SECONDS = 0.1
_DECAY = 0.95
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TrainLoopParts:
    """What the fold works with."""

    learner: Learner
    reader: LogReader
    store: StoreClient
    objects: ObjectStore
    scratch: Scratch
    publisher: Publisher
    events: EventLog
    heartbeat: WorkerHeartbeat
    lease: Lease
    traces: StepTraces
    numbers: StepRecorder
    checkpoint_bytes: int


class TrainLoop:
    """One run under one term."""

    def __init__(self, record: RunRecord, parts: TrainLoopParts, state: TrainerState) -> None:
        self._run_id = record.run_id
        self._spec = record.spec
        self._parts = parts
        self._state = state
        self._thread = ThreadPoolExecutor(1, "learner")
        self._commit: asyncio.Task[None] | None = None
        self._unsaved_bytes = 0
        self._spent = {"wait": 0.0, "train": 0.0}
        self._fingerprint = fingerprint(record.spec.trainer.threads)

    async def run(self) -> None:
        """Trains to the last step and commits it. Raises FencedError when another trainer has the run."""
        state, steps = self._state, self._spec.schedule.steps
        try:
            with self._parts.traces.start(state.step):
                await self._publish(await self._export(state.step, False))
            while state.step < steps:
                await self._gate()
                with self._parts.traces.step(state.step) as trace:
                    await self._step(trace)
            await self._settle()
        finally:
            self._parts.publisher.cancel()
            if self._commit is not None:
                self._commit.cancel()
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _step(self, trace: StepTrace) -> None:
        began = time.perf_counter()
        items = await self._parts.reader.step(self._state.step, self._state.frontier)
        with trace.training(items):
            await self._train(items, began, trace)
            if self._is_checkpoint_due():
                await self._checkpoint()

    async def _train(self, items: Sequence[Collected], began: float, trace: StepTrace) -> None:
        state = self._state
        batch, facts = build_batch(state.step, items, self._spec.algorithm)
        arrived = time.perf_counter()
        metrics = await self._in_thread(lambda: self._parts.learner.train(batch))
        trace.trained(metrics)
        export = await self._export(batch.step + 1, metrics.noop)
        trace.exported()
        trained = time.perf_counter()
        observe("gradbus.step.duration", trained - arrived)
        state.frontier.add(state.step, [(item.entry.index, item.digest) for item in items])
        state.trained.update((item.entry.index, item.digest) for item in items)
        self._unsaved_bytes += sum(item.size_bytes for item in items)
        state.step += 1
        await self._publish(export)
        seconds = {"wait": arrived - began, "train": trained - arrived, "publish": time.perf_counter() - trained}
        self._chart(state.step - 1, metrics, facts, seconds)
        self._parts.numbers.step(metrics, facts, seconds)
        self._warn(state.step - 1, facts)
        self._show(seconds, facts)

    async def _export(self, step: int, noop: bool) -> Export:
        learner, scratch, dtype = self._parts.learner, self._parts.scratch, VERSION_DTYPES[self._spec.weights.dtype]
        return await self._written(lambda: export_version(step, learner.weights(), noop, scratch, dtype), f"version {step}")

    async def _publish(self, export: Export) -> None:
        """Versions from (step - max_staleness) on stay named: a resume from here may have to sample with them."""
        probe = await self._in_thread(self._parts.learner.probe) if self._spec.needs_probe else None
        task = await self._parts.publisher.publish(export, self._is_checkpoint_due(), probe)
        oldest = export.step - self._spec.schedule.max_staleness

        def note(done: asyncio.Task[object]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._state.versions = {step: known for step, known in self._state.versions.items() if step >= oldest}
                self._state.versions[export.step] = task.result()

        task.add_done_callback(note)
        self._parts.heartbeat.presence.version = export.step
        self._parts.numbers.held(export.step, self._parts.reader.waiting)

    def _is_checkpoint_due(self) -> bool:
        step = self._state.step
        regular = step % self._spec.checkpoint.every == 0 or step == self._spec.schedule.steps
        return regular or self._unsaved_bytes > self._parts.checkpoint_bytes

    async def _checkpoint(self) -> None:
        """Commits in the background; the step after goes on meanwhile."""
        await self._settle()
        self._unsaved_bytes = 0
        state, learner, scratch = self._state, self._parts.learner, self._parts.scratch
        snapshot = await self._written(lambda: Snapshot.of(state, learner, scratch, self._spec.weights), f"checkpoint {state.step}")
        self._commit = asyncio.create_task(self._commit_snapshot(snapshot), name=f"checkpoint {snapshot.state.step}")

    async def _commit_snapshot(self, snapshot: Snapshot) -> None:
        parts = self._parts
        # The history of its steps first: once they are committed nobody trains them again, nor tells of them.
        await parts.events.wait_until_stored()
        with span("checkpoint", attributes={"gradbus.run.id": self._run_id, "gradbus.step": snapshot.state.step}):
            digest = await commit(parts.store, parts.objects, snapshot, parts.lease.term, self._fingerprint)
        self._state.previous = digest
        step = snapshot.state.step
        parts.events.emit("checkpoint", f"checkpoint {step}", {"step": step, "digest": digest}, key=f"checkpoint:{step}")

    async def _settle(self) -> None:
        await self._parts.publisher.settle()
        await asyncio.sleep(0)  # lets the newest version be noted
        if self._commit is not None:
            await self._commit

    async def _gate(self) -> None:
        """Stands still while the run is paused; ends when the lease is lost."""
        while True:
            if self._parts.lease.lost.is_set():
                raise FencedError(f"the trainer's lease of {self._run_id} is lost; it is resumed from the newest checkpoint")
            if self._parts.heartbeat.desired(self._run_id) != "paused":
                return
            await asyncio.sleep(_GATE_SECONDS)

    def _chart(self, step: int, metrics: StepMetrics, facts: BatchStats, seconds: dict[str, float]) -> None:
        data = {"step": step, "version": step + 1, "noop": metrics.noop, "tokens": metrics.tokens, "seconds": seconds}
        data |= {"learning_rate": metrics.learning_rate, "grad_norm": metrics.grad_norm, "loss": metrics.loss.total}
        data |= {"policy_loss": metrics.loss.policy, "kl": metrics.loss.kl, "entropy": metrics.loss.entropy}
        data |= {"ratio_mean": metrics.ratio.mean, "ratio_max": metrics.ratio.max, "logprob_diff": metrics.ratio.logprob_diff}
        data |= {"clip_low": metrics.ratio.clipped_low, "clip_high": metrics.ratio.clipped_high}
        self._parts.events.emit("metrics", f"step {step}", data | facts.to_json(), key=f"step:{step}")

    def _warn(self, step: int, facts: BatchStats) -> None:
        if facts.unjudged and not facts.rewards:
            text = f"no sample of step {step} could be judged, nothing was learned: {facts.unjudged}; see to the scorer or the data"
            self._parts.events.emit("alarm", text, {"step": step}, "error", key=f"unjudged:{step}")

    def _show(self, seconds: Mapping[str, float], facts: BatchStats) -> None:
        """Shares of the last steps' time, for the run's status."""
        for name in ("wait", "train"):
            self._spent[name] = _DECAY * self._spent[name] + seconds[name]
        total = sum(self._spent.values()) or 1.0
        presence = self._parts.heartbeat.presence
        presence.shares = {name: spent / total for name, spent in self._spent.items()}
        presence.staleness = facts.mean_staleness

    async def _written(self, write: Callable[[], _Result], what: str) -> _Result:
        """What `write` gives. While the disk has no room it is tried again and the run's history says so; the learner loses nothing."""

        async def attempt() -> _Result:
            try:
                return await self._in_thread(write)
            except StorageError as error:
                self._parts.events.emit("alarm", f"{what} waits: {error}", {"step": self._state.step}, "error", key=f"disk:{what}")
                raise

        return await until_stored(attempt, f"{what} of {self._run_id}")

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

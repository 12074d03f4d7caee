"""The train loop: the experience log goes in step by step, policy versions and checkpoints come out.

    restore ─▶ [ next step's groups ─▶ train ─▶ if due: export, publish ─▶ if due: checkpoint ]

Publishing and commits go on in the background. Its result is a function of the checkpoint it starts from, the spec and the groups it reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from gradbus.aio.threads import finished_or_restart
from gradbus.control.runs import RunRecord
from gradbus.errors import StorageError
from gradbus.process.device_turns import DeviceTurns
from gradbus.telemetry import observe
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_kernels.models.dtypes import DTYPES
from gradbus_trainer.checkpoints.state import Snapshot, TrainerState
from gradbus_trainer.checkpoints.writer import CheckpointWriter
from gradbus_trainer.fold import Fold
from gradbus_trainer.learners.base import Learner
from gradbus_trainer.run_control import RunControl
from gradbus_trainer.step.groups import LoggedGroup
from gradbus_trainer.step.source import StepSource
from gradbus_trainer.telemetry.step_report import StepReporter
from gradbus_trainer.telemetry.step_traces import StepTrace, StepTraces
from gradbus_trainer.tensors.export import Export, export_version
from gradbus_trainer.tensors.scratch import Scratch
from gradbus_trainer.versions.object_storage import until_stored
from gradbus_trainer.versions.publisher import Publisher

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TrainLoopParts:
    """The parts of a train loop: its input, the learner, its outputs, its control and its reports."""

    source: StepSource
    learner: Learner
    turns: DeviceTurns
    """The learner's, on a device that an engine uses too."""
    scratch: Scratch
    publisher: Publisher
    checkpoints: CheckpointWriter
    control: RunControl
    reporter: StepReporter
    traces: StepTraces


class TrainLoop:
    """One run under one term."""

    def __init__(self, record: RunRecord, parts: TrainLoopParts, state: TrainerState) -> None:
        """`state` is that of the learner: restored, or new."""
        self._run_id = record.run_id
        self._spec = record.spec
        self._fold = Fold(record.spec, parts.learner, state)
        self._parts = parts
        self._state = state
        self._thread = ThreadPoolExecutor(1, "learner")

    async def run(self) -> None:
        """Trains to the last step and commits it. Raises FencedError when another trainer has the run.

        If the source ends earlier, the loop ends with the versions published that were due; steps after the newest due checkpoint are not
        committed.
        """
        parts, state = self._parts, self._state
        try:
            with parts.traces.start(state.step):
                await self._publish(await self._export(state.step, noop=False))
                parts.reporter.reached(state.step, parts.source.waiting)
                await parts.turns.end()
            while state.step < self._spec.schedule.steps:
                await parts.control.wait_while_paused()
                with parts.traces.step(state.step) as trace:
                    if not await self._step(trace):
                        break
            await self._settle()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
            try:  # not by gather: cancelled again, it would end with the first of them
                await parts.publisher.close()
            finally:
                await parts.checkpoints.close()

    async def _step(self, trace: StepTrace) -> bool:
        """One step, or False if the source has ended."""
        began = time.perf_counter()
        groups = await self._parts.source.next_step(self._state.step)
        if groups is None:
            return False
        with trace.training(groups):
            await self._train(groups, began, trace)
            if self._parts.checkpoints.is_due(self._state.step):
                await self._checkpoint()
            await self._parts.turns.end()
        return True

    async def _train(self, groups: Sequence[LoggedGroup], began: float, trace: StepTrace) -> None:
        step = self._state.step
        batch, stats = self._fold.batch(groups)
        arrived = time.perf_counter()
        await self._parts.turns.begin()
        begun = time.perf_counter()
        metrics = await self._in_thread(lambda: self._fold.learn(batch))
        trace.trained(metrics)
        self._parts.checkpoints.add_trained(sum(group.size_bytes for group in groups))
        export = await self._export(step + 1, metrics.noop) if self._is_published(step + 1) else None
        trace.exported()
        trained = time.perf_counter()
        observe("gradbus.step.duration", trained - begun)
        self._fold.advance(groups)
        if export is not None:
            await self._publish(export)
        self._parts.reporter.reached(step + 1, self._parts.source.waiting)
        seconds = {"wait": arrived - began, "train": trained - begun, "publish": time.perf_counter() - trained}
        if (switching := self._parts.turns.switching_seconds()) is not None:
            seconds["switch"] = switching
        self._parts.reporter.trained(step, metrics, stats, seconds)

    def _is_published(self, step: int) -> bool:
        """Whether a version follows `step` trained steps: each if rollouts sample with it, else for a checkpoint or an evaluation."""
        return step % self._spec.publish_every == 0 or self._spec.evaluates(step) or self._parts.checkpoints.is_due(step)

    async def _export(self, step: int, noop: bool) -> Export:
        """The learner's weights as version `step`."""
        learner, scratch, dtype = self._parts.learner, self._parts.scratch, DTYPES[self._spec.version_dtype]
        return await self._write(lambda: export_version(step, learner.weights(), noop, scratch, dtype), f"version {step}")

    async def _publish(self, export: Export) -> None:
        """Begins to publish. The state keeps what a resume from here may sample with, or compare its samples with."""
        parts, spec = self._parts, self._spec
        probe = await self._in_thread(parts.learner.probe) if spec.needs_probe else None
        whole = parts.checkpoints.is_due(self._state.step) or spec.reference_version(export.step) == export.step
        task = await parts.publisher.publish(export, whole, probe)

        def add_version(done: asyncio.Task[WeightManifest]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._state.add_version(done.result(), spec)

        task.add_done_callback(add_version)

    async def _checkpoint(self) -> None:
        """Takes a snapshot and begins its commit."""
        await self._settle()
        state, learner, scratch = self._state, self._parts.learner, self._parts.scratch
        rounded = self._spec.version_dtype != "fp32"
        snapshot = await self._write(lambda: Snapshot.of(state, learner, scratch, rounded), f"checkpoint {state.step}")
        self._parts.checkpoints.begin(snapshot, state)

    async def _settle(self) -> None:
        """Waits for the version and the checkpoint under way."""
        await self._parts.publisher.settle()
        await asyncio.sleep(0)  # the version's callback runs first
        await self._parts.checkpoints.settle()

    async def _write(self, write: Callable[[], _Result], what: str) -> _Result:
        """The result of `write`, repeated while the disk is full, which the run's history reports; the learner loses nothing."""

        async def attempt() -> _Result:
            try:
                return await self._in_thread(write)
            except StorageError as error:
                self._parts.reporter.disk_full(what, self._state.step, error)
                raise

        return await until_stored(attempt, f"{what} of {self._run_id}")

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        return await finished_or_restart(asyncio.get_running_loop().run_in_executor(self._thread, work), "learner")

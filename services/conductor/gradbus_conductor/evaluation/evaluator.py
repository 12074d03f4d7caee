"""Runs due evaluations, one version at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import grpc
from grpc.aio import AioRpcError

from gradbus.bus import Bucket, EventLog, Level, OwnedKey, TaskQueue
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.experience import GroupStore
from gradbus.spec import EVALUATED_VERSIONS, RewardChange
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import LogEntry
from gradbus.v1.weight_store_service_pb2 import GetVersionRequest
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_conductor.clients import Clients
from gradbus_conductor.evaluation.results import HeldOutLoss, Result, decode_result, encode_result, next_due, summarise
from gradbus_conductor.groups.dataset import Dataset
from gradbus_conductor.groups.first_answers import FirstAnswers
from gradbus_conductor.groups.pipeline import GroupPipeline, PipelineConfig
from gradbus_conductor.groups.task_kinds import EvaluationTasks

_log = get_logger(__name__)
_TIMEOUT_SECONDS = 5.0
_CHECK_DELETED_AFTER_SECONDS = 5.0
"""Age of an unfinished evaluation from which its version may have been deleted."""


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """The run, its held-out rows, and where the results go."""

    record: RunRecord
    dataset: Dataset | None
    runs_bucket: Bucket
    events: EventLog
    first_answers: FirstAnswers


class Evaluator:
    """One result per (run, version), in order. The newest is stored in the bucket `runs`, so that a restart repeats no evaluation."""

    def __init__(self, clients: Clients, config: EvaluationConfig, queue: TaskQueue, wake: asyncio.Event) -> None:
        self._clients = clients
        self._config = config
        self._stored = OwnedKey(config.runs_bucket, f"{config.record.run_id}.evaluations")
        self._groups = GroupStore(clients.buffer, config.record.run_id, journaled=config.record.spec.may_have_journal)
        self._queue = queue
        self._wake = wake
        self._skipped = -1
        self._changes: list[RewardChange] = []
        """Of the scorer, since the run was submitted."""
        self.newest: Result | None = None
        """The result of the highest version evaluated."""
        self._active: tuple[int, GroupPipeline] | None = None

    def change_scorer(self, change: RewardChange) -> None:
        """From a group on another scorer judges, and with it the versions whose step begins there or later: no row of theirs was judged."""
        self._changes.append(change)
        if self._active is not None:
            self._active[1].change_scorer(change)

    @property
    def running(self) -> int | None:
        """The version under evaluation."""
        return self._active[0] if self._active else None

    async def recover(self) -> None:
        """Reads the newest result of earlier conductors."""
        self.newest = decode_result(await self._stored.read())

    def scoring_failure(self, seconds: float) -> str:
        """Why scoring fails, if it does for a row older than `seconds`; else empty."""
        return self._active[1].scoring_failure(seconds) if self._active else ""

    @property
    def scoring_fault(self) -> str:
        """Why the run must end: a row can never be scored. Empty while there is hope."""
        return self._active[1].scoring_fault if self._active else ""

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the completed rows in the buffer."""
        return self._active[1].waiting_bytes if self._active else 0

    @property
    def journals(self) -> list[str]:
        """Keys of the journals that the rows of the evaluation in progress may have."""
        if self._active is None or self._config.dataset is None:
            return []
        return self._groups.evaluation_journals(self._active[0], range(len(self._config.dataset.items)))

    def due(self) -> int | None:
        """The next version to be evaluated; None once all are."""
        done = max(self.newest.version if self.newest else -1, self._skipped)
        return next_due(self._config.record.spec, done) if self._config.dataset is not None else None

    @property
    def trainable_steps(self) -> int | None:
        """How many steps of a run on given responses may be trained before the evaluation that is due ends; None: all.

        Retention keeps the newest evaluated versions up to a checkpoint: one a step later would let it delete the version that is due.
        """
        spec, due = self._config.record.spec, self.due()
        return due + EVALUATED_VERSIONS * spec.evaluation.every - 1 if spec.trains_given and due is not None else None

    def report_sampled(self, version: int, rows: Sequence[int]) -> None:
        """A worker reports that these rows, completed by `version`, are in the buffer."""
        if self._active and self._active[0] == version:
            self._active[1].report_sampled(rows)

    async def advance(self, head: int, workers: int) -> None:
        """Starts the evaluation that is due, divided among so many workers, and stores the result once every row is judged."""
        if self._config.dataset is None:
            return
        if self._active is None:
            await self._start_next(head, workers)
        if self._active is None:
            return
        version, pipeline = self._active
        wanted = self._wanted(version, pipeline)
        await pipeline.collect(wanted)
        if len(pipeline.judged) == len(self._config.dataset.items):
            await self._finish(version, pipeline)
        elif version < head and pipeline.older_than(_CHECK_DELETED_AFTER_SECONDS, wanted) and await self._manifest(version) == "deleted":
            await self._skip(version, pipeline, range(len(self._config.dataset.items)))

    async def dispatch_missing(self, workers: Sequence[WorkerPresence]) -> None:
        """Looks for rows that none of the workers claims, and dispatches those again that are lost."""
        if self._active is not None:
            version, pipeline = self._active
            await pipeline.dispatch_missing(self._wanted(version, pipeline), workers)

    def abandon(self, reason: str) -> None:
        """Ends the traces of the evaluation in progress, because the run ends."""
        if self._active:
            self._active[1].traces.abandon(reason)

    async def close(self) -> None:
        """Stops the evaluation in progress."""
        if self._active:
            await self._active[1].close()
            self._active = None

    def _wanted(self, version: int, pipeline: GroupPipeline) -> dict[int, int]:
        """The rows that are not judged, each with the version under evaluation."""
        rows = self._config.dataset.items if self._config.dataset is not None else ()
        return {row: version for row in range(len(rows)) if row not in pipeline.judged}

    async def _start_next(self, head: int, workers: int) -> None:
        version, record = self.due(), self._config.record
        # Samples: one version ahead, so that its tasks stand in the queue before the training tasks of the same version.
        newest = head if record.spec.trains_given else head + 1
        if self._config.dataset is None or version is None or version > newest:
            return
        files: Sequence[str] = ()
        if record.spec.trains_given:
            found = await self._manifest(version)
            if found == "deleted":
                self._report_skipped(version)
            if not isinstance(found, WeightManifest):
                return
            files = [shard.digest for shard in found.shards]
        tasks, first_answers = EvaluationTasks(version, files), self._config.first_answers
        config = PipelineConfig(record, self._config.dataset.items, lambda index: index, tasks, first_answers)
        pipeline = GroupPipeline(self._clients, config, self._queue, self._wake)
        for change in self._changes:
            pipeline.change_scorer(change)
        self._active = version, pipeline
        await pipeline.dispatch(dict.fromkeys(range(len(self._config.dataset.items)), version), workers)

    async def _manifest(self, version: int) -> WeightManifest | Literal["deleted", "unknown"]:
        """The version's manifest; unknown if the weight store does not answer, and is asked again."""
        request = GetVersionRequest(run_id=self._config.record.run_id, step=version)
        try:
            found = await self._clients.weight_store.GetVersion(request, timeout=_TIMEOUT_SECONDS)
        except AioRpcError as error:
            return "deleted" if error.code() == grpc.StatusCode.OUT_OF_RANGE else "unknown"
        return found.manifest

    async def _finish(self, version: int, pipeline: GroupPipeline) -> None:
        result = await self._reported(version, pipeline.judged)
        # The event first: once the result is stored, the version is not evaluated again.
        await self._config.events.flush()
        await self._stored.write(encode_result(result))
        self.newest = result
        await self._groups.discard_evaluation(version, pipeline.judged)
        await self.close()

    async def _reported(self, version: int, judged: Mapping[int, LogEntry]) -> Result:
        """The result, after its event."""
        spec = self._config.record.spec
        if spec.trains_given:
            rows = [judged[row] for row in sorted(judged)]
            loss = await asyncio.to_thread(HeldOutLoss.of, version, rows, spec)  # a hundred thousand long rows take seconds
            shown = {"loss": loss.loss, "accuracy": loss.accuracy}
            score = ", ".join(f"{name} {value:.3f}" for name, value in shown.items() if value is not None)
            data: dict[str, object] = {"version": version, "samples": loss.samples, "loss": loss.loss, **loss.metrics}
            self._emit(version, score if loss.loss is not None else "the loss is not finite", data, failed=loss.loss is None)
            return loss
        result = summarise(version, judged.values(), spec.evaluation.metric)
        # The metric that was measured, not the configured one.
        metric = spec.evaluation.metric if spec.evaluation.metric in result.components else "reward"
        score = "no row could be judged" if result.accuracy is None else f"{metric} {result.accuracy:.3f}"
        self._emit(version, score, result.to_json() | {"metric": metric}, failed=result.accuracy is None)
        return result

    def _emit(self, version: int, score: str, data: dict[str, object], *, failed: bool) -> None:
        level: Level = "warning" if failed else "info"
        self._config.events.emit("evaluation", f"version {version}: {score}", data, level, key=f"evaluation:{version}")

    async def _skip(self, version: int, pipeline: GroupPipeline, rows: Iterable[int]) -> None:
        self._report_skipped(version)
        pipeline.traces.abandon("the version was deleted")
        await self._groups.discard_evaluation(version, rows)
        await self.close()

    def _report_skipped(self, version: int) -> None:
        _log.warning("evaluation_skipped", run_id=self._config.record.run_id, version=version)
        text = f"version {version} was deleted before it could be evaluated"
        self._config.events.emit("evaluation", text, {"version": version}, "warning")
        self._skipped = version

"""Runs the evaluations that are due, one version at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from grpc.aio import AioRpcError

from gradbus.bus import Bucket, EventLog, Level, OwnedKey, TaskQueue
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.experience import GroupStore
from gradbus.telemetry import get_logger
from gradbus.v1.weight_store_service_pb2 import GetVersionRequest
from gradbus_conductor.clients import Clients
from gradbus_conductor.evaluation.results import EvaluationResult, decode_result, encode_result, next_due, summarise
from gradbus_conductor.groups.dataset import Dataset
from gradbus_conductor.groups.pipeline import Sampling, SamplingWork

_log = get_logger(__name__)
_GONE_AFTER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EvaluationWork:
    """What is evaluated, and where the results go."""

    record: RunRecord
    dataset: Dataset | None
    runs: Bucket
    events: EventLog


class Evaluator:
    """One result a (run, version), in order; the newest is kept in the bucket `runs` so that a restart repeats none."""

    def __init__(self, clients: Clients, work: EvaluationWork, queue: TaskQueue, wake: asyncio.Event) -> None:
        self._clients = clients
        self._work = work
        self._stored = OwnedKey(work.runs, f"{work.record.run_id}.evaluations")
        self._queue = queue
        self._wake = wake
        self._skipped = -1
        self.newest: EvaluationResult | None = None
        """The result of the highest version evaluated."""
        self._active: tuple[int, Sampling] | None = None

    @property
    def running(self) -> int | None:
        """The version under evaluation."""
        return self._active[0] if self._active else None

    async def recover(self) -> None:
        """Reads the newest result of earlier conductors."""
        self.newest = decode_result(await self._stored.read())

    def failing(self, seconds: float) -> str:
        """Why judging fails, if some row has waited longer than `seconds` for it; else empty."""
        return self._active[1].failing(seconds) if self._active else ""

    def due(self) -> int | None:
        """The next version to be evaluated; None once all are."""
        done = max(self.newest.version if self.newest else -1, self._skipped)
        return next_due(self._work.record.spec, done) if self._work.dataset is not None else None

    def signalled(self, version: int, rows: Sequence[int]) -> None:
        """A worker says that these completions of `version` lie in the buffer."""
        if self._active and self._active[0] == version:
            self._active[1].signalled(rows)

    async def advance(self, head: int, workers: Sequence[WorkerPresence]) -> None:
        """Starts what is due, repairs what is lost, and counts what is done."""
        if self._work.dataset is None:
            return
        if self._active is None:
            await self._start_next(head, workers)
        if self._active is None:
            return
        version, sampling = self._active
        wanted = {row: version for row in range(len(self._work.dataset.items)) if row not in sampling.judged}
        await sampling.collect(wanted)
        await sampling.repair(wanted, workers)
        if len(sampling.judged) == len(self._work.dataset.items):
            await self._finish(version, sampling)
        elif version < head and sampling.overdue(wanted, _GONE_AFTER_SECONDS) and await self._is_gone(version):
            _log.warning("evaluation_skipped", run_id=self._work.record.run_id, version=version)
            text = f"version {version} was deleted before it could be evaluated"
            self._work.events.emit("evaluation", text, {"version": version}, "warning")
            self._skipped = version
            sampling.traces.abandon("the version was deleted")
            await self.close()

    def abandon(self, reason: str) -> None:
        """The run ends before what is under way."""
        if self._active:
            self._active[1].traces.abandon(reason)

    async def close(self) -> None:
        """Drops what is in flight."""
        if self._active:
            await self._active[1].close()
            self._active = None

    async def _start_next(self, head: int, workers: Sequence[WorkerPresence]) -> None:
        version = self.due()
        # One version ahead: its tasks then stand in the queue before the training tasks of the same version.
        if self._work.dataset is None or version is None or version > head + 1:
            return
        work = SamplingWork(self._work.record, self._work.dataset.items, lambda index: index, evaluated=version)
        self._active = version, Sampling(self._clients, work, self._queue, self._wake)
        await self._active[1].dispatch(dict.fromkeys(range(len(self._work.dataset.items)), version), len(workers))

    async def _finish(self, version: int, sampling: Sampling) -> None:
        wanted = self._work.record.spec.evaluation.metric
        result = summarise(version, sampling.judged.values(), wanted)
        metric = wanted if wanted in result.components else "reward"  # what the number is, not what was hoped for
        score = "no row could be judged" if result.accuracy is None else f"{metric} {result.accuracy:.3f}"
        level: Level = "warning" if result.accuracy is None else "info"
        data = result.to_json() | {"metric": metric}
        self._work.events.emit("evaluation", f"version {version}: {score}", data, level, key=f"evaluation:{version}")
        # The history first: once the result is stored, nobody evaluates again.
        await self._work.events.flush()
        await self._stored.write(encode_result(result))
        self.newest = result
        await GroupStore(self._clients.buffer, self._work.record.run_id).discard_evaluation(version, sampling.judged)
        await self.close()

    async def _is_gone(self, version: int) -> bool:
        try:
            await self._clients.weight_store.GetVersion(GetVersionRequest(run_id=self._work.record.run_id, step=version), timeout=5.0)
        except AioRpcError as error:
            return bool(error.code() == grpc.StatusCode.OUT_OF_RANGE)
        return False

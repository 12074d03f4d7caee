"""Runs the evaluations that are due, one version at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
from grpc.aio import AioRpcError

from gradbus.buffer import GroupStore
from gradbus.bus import Bucket, EventLog, TaskQueue
from gradbus.runs import RunRecord, WorkerPresence
from gradbus.telemetry import get_logger
from gradbus.v1.weight_store_service_pb2 import GetVersionRequest
from gradbus_conductor.evaluation import EvaluationResult, decode_results, due_versions, encode_results, summarise
from gradbus_conductor.preparation import Dataset
from gradbus_conductor.sampling import Sampling, SamplingWork
from gradbus_conductor.wires import Wires

_log = get_logger(__name__)
_GONE_AFTER_SECONDS = 5.0


class Evaluator:
    """One result a (run, version), kept in the bucket `runs` so that a restart repeats none."""

    def __init__(self, wires: Wires, record: RunRecord, dataset: Dataset | None, queue: TaskQueue, wake: asyncio.Event) -> None:
        self._wires = wires
        self._record = record
        self._dataset = dataset
        self._queue = queue
        self._wake = wake
        self._results: dict[int, EvaluationResult] = {}
        self._skipped: set[int] = set()
        self._active: tuple[int, Sampling] | None = None

    @property
    def newest(self) -> EvaluationResult | None:
        """The result of the highest version evaluated."""
        return self._results[max(self._results)] if self._results else None

    @property
    def running(self) -> int | None:
        """The version under evaluation."""
        return self._active[0] if self._active else None

    async def recover(self, runs: Bucket) -> None:
        """Reads the results of earlier conductors."""
        stored = await runs.get(self._key)
        self._results = decode_results(stored.value if stored else None)

    def pending(self) -> list[int]:
        """Versions still to be evaluated."""
        if self._dataset is None:
            return []
        return [version for version in due_versions(self._record.spec) if version not in self._results and version not in self._skipped]

    def signalled(self, version: int, rows: Sequence[int]) -> None:
        """A worker says that these completions of `version` lie in the buffer."""
        if self._active and self._active[0] == version:
            self._active[1].signalled(rows)

    async def advance(self, head: int, workers: Sequence[WorkerPresence], runs: Bucket, events: EventLog) -> None:
        """Starts what is due, repairs what is lost, and counts what is done."""
        if self._dataset is None:
            return
        if self._active is None:
            await self._start_next(head, workers)
        if self._active is None:
            return
        version, sampling = self._active
        wanted = {row: version for row in range(len(self._dataset.items)) if row not in sampling.judged}
        await sampling.collect(wanted)
        await sampling.repair(wanted, workers)
        if len(sampling.judged) == len(self._dataset.items):
            await self._finish(version, sampling, runs, events)
        elif version < head and sampling.overdue(wanted, _GONE_AFTER_SECONDS) and await self._is_gone(version):
            _log.warning("evaluation_skipped", run_id=self._record.run_id, version=version)
            events.emit("evaluation", f"version {version} was deleted before it could be evaluated", {"version": version}, "warning")
            self._skipped.add(version)
            await self.close()

    async def close(self) -> None:
        """Drops what is in flight."""
        if self._active:
            await self._active[1].close()
            self._active = None

    async def _start_next(self, head: int, workers: Sequence[WorkerPresence]) -> None:
        pending = self.pending()
        # One version ahead: its tasks then stand in the queue before the training tasks of the same version.
        if self._dataset is None or not pending or pending[0] > head + 1:
            return
        version = pending[0]
        work = SamplingWork(self._record, self._dataset.items, lambda index: index, evaluated=version)
        self._active = version, Sampling(self._wires, work, self._queue, self._wake)
        await self._active[1].dispatch(dict.fromkeys(range(len(self._dataset.items)), version), len(workers))

    async def _finish(self, version: int, sampling: Sampling, runs: Bucket, events: EventLog) -> None:
        metric = self._record.spec.evaluation.metric
        result = summarise(version, sampling.judged.values(), metric)
        self._results[version] = result
        await runs.put(self._key, encode_results(self._results))
        await GroupStore(self._wires.buffer, self._record.run_id).discard_evaluation(version, sampling.judged)
        data = result.to_json() | {"metric": metric}
        events.emit("evaluation", f"version {version}: {metric} {result.accuracy:.3f}", data, key=f"evaluation:{version}")
        await self.close()

    async def _is_gone(self, version: int) -> bool:
        try:
            await self._wires.weight_store.GetVersion(GetVersionRequest(run_id=self._record.run_id, step=version), timeout=5.0)
        except AioRpcError as error:
            return bool(error.code() == grpc.StatusCode.OUT_OF_RANGE)
        return False

    @property
    def _key(self) -> str:
        return f"{self._record.run_id}.evaluations"

"""Dispatching, and dispatching again. The only owner of "again": the broker never redelivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby

from gradbus.bus import TaskQueue
from gradbus.control.runs import WorkerPresence
from gradbus.telemetry import PROCESS, get_logger
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_conductor.groups.traces import GroupTraces

_log = get_logger(__name__)
_PATIENCE_SECONDS = 2.0
_MOST_PATIENCE_SECONDS = 20.0
_GROUPS_A_TASK = 32


@dataclass(slots=True)
class _Sent:
    since: float
    at: float = 0.0
    attempts: int = 0


class Dispatcher:
    """Tasks of one run: of its training, or of the evaluation of one version."""

    def __init__(self, queue: TaskQueue, run_id: str, traces: GroupTraces, evaluated: int | None = None) -> None:
        self._queue = queue
        self._traces = traces
        self._run_id = run_id
        self._evaluated = evaluated
        self._kind = TaskKind.TASK_KIND_TRAIN if evaluated is None else TaskKind.TASK_KIND_EVALUATION
        self._serial = count()
        self._sent: dict[int, _Sent] = {}
        self._claimed: dict[int, str] = {}
        self.again = 0
        """Groups dispatched more than once."""

    async def send(self, groups: Iterable[tuple[int, int, int]], workers: int) -> None:
        """Publishes tasks for (index, version, row), spread over `workers`."""
        now, began = asyncio.get_running_loop().time(), time.time_ns()
        tasks: list[Task] = []
        for version, same in groupby(sorted(groups, key=lambda group: (group[1], group[0])), key=lambda group: group[1]):
            members = list(same)
            size = max(1, min(_GROUPS_A_TASK, -(-len(members) // max(1, workers))))
            tasks += [self._task(version, part, began) for part in _batched(members, size)]
            for index, _, _ in members:
                sent = self._sent.setdefault(index, _Sent(since=now))
                PROCESS.count("gradbus.groups.dispatched", 1, {"gradbus.dispatch": "again" if sent.attempts else "first"})
                sent.at, sent.attempts = now, sent.attempts + 1
        await self._queue.publish(tasks)
        self._traces.sent(tasks, began)

    def settled(self, indexes: Iterable[int]) -> None:
        """These need no dispatching any more."""
        for index in indexes:
            self._sent.pop(index, None)

    def age(self, index: int) -> float:
        """Seconds since `index` was first dispatched or last excused; 0 if it was not dispatched."""
        sent = self._sent.get(index)
        return asyncio.get_running_loop().time() - sent.since if sent else 0.0

    def excuse(self, indexes: Iterable[int]) -> None:
        """These could not be worked on until now: their age starts anew."""
        now = asyncio.get_running_loop().time()
        for index in indexes:
            if (sent := self._sent.get(index)) is not None:
                sent.since = now

    def overdue(self, wanted: Mapping[int, int], workers: Sequence[WorkerPresence]) -> list[int]:
        """Of `wanted` (index to version) those that no live worker claims and that have waited long enough.

        A group whose claimant has gone is overdue at once.
        """
        claimed = {index: worker.incarnation for worker in workers for index in self._claims(worker)}
        alive = {worker.incarnation for worker in workers}
        now = asyncio.get_running_loop().time()
        found = []
        for index in wanted:
            if index in claimed:
                continue
            sent = self._sent.get(index)
            orphaned = index in self._claimed and self._claimed[index] not in alive
            if sent is None or orphaned or now - sent.at > _patience(sent.attempts):
                found.append(index)
        self._claimed = claimed
        return found

    async def send_again(self, overdue: Sequence[int], versions: Mapping[int, int], rows: Mapping[int, int], workers: int) -> None:
        """Dispatches overdue groups: those never sent, and those sent before unless the queue still holds tasks nobody has fetched."""
        lost = [index for index in overdue if index in self._sent]
        if lost and await self._queue.waiting() > 0:
            now = asyncio.get_running_loop().time()
            for index in lost:
                self._sent[index].at = now
            self.excuse(lost)
            overdue, lost = [index for index in overdue if index not in self._sent], []
        if lost:
            self.again += len(lost)
            _log.info("dispatched_again", run_id=self._run_id, kind=int(self._kind), groups=len(lost), first=min(lost))
        if overdue:
            await self.send([(index, versions[index], rows[index]) for index in overdue], workers)

    def _claims(self, worker: WorkerPresence) -> list[int]:
        if self._evaluated is None:
            return worker.claims
        return [index for version, index in worker.evaluation_claims if version == self._evaluated]

    def _task(self, version: int, members: Iterable[tuple[int, int, int]], began: int) -> Task:
        return Task(
            task_id=f"{self._kind}.{version}.{next(self._serial)}",
            run_id=self._run_id,
            kind=self._kind,
            version=version,
            groups=[GroupTask(index=index, row=row, traceparent=self._traces.begin(index, began)) for index, _, row in members],
        )


def _patience(attempts: int) -> float:
    """Seconds to wait for a group that was dispatched `attempts` times: doubled each time, up to a bound."""
    return min(_MOST_PATIENCE_SECONDS, _PATIENCE_SECONDS * 2.0 ** min(attempts - 1, 10))


def _batched(members: Sequence[tuple[int, int, int]], size: int) -> list[Sequence[tuple[int, int, int]]]:
    return [members[at : at + size] for at in range(0, len(members), size)]

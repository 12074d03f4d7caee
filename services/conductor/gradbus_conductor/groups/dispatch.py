"""Dispatching tasks, and dispatching them again. Only the dispatcher repeats a task: the broker never redelivers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby

from gradbus.bus import TaskQueue
from gradbus.control.runs import WorkerPresence
from gradbus.telemetry import PROCESS, get_logger
from gradbus.v1.task_pb2 import GroupTask, Task
from gradbus_conductor.groups.task_kinds import TRAINING, TaskSet
from gradbus_conductor.groups.traces import GroupTraces

_log = get_logger(__name__)
_REDISPATCH_SECONDS = 2.0
_MAX_REDISPATCH_SECONDS = 20.0
_MAX_GROUPS_PER_TASK = 32


@dataclass(slots=True)
class _Dispatched:
    since: float
    """Start of the group's age, on the event loop's clock."""
    last: float = 0.0
    """Time of the last attempt."""
    attempts: int = 0


class Dispatcher:
    """Publishes the tasks of one pipeline and finds groups that must be dispatched again."""

    def __init__(self, queue: TaskQueue, run_id: str, traces: GroupTraces, tasks: TaskSet = TRAINING) -> None:
        self._queue = queue
        self._traces = traces
        self._run_id = run_id
        self._tasks = tasks
        self._serial = count()
        self._dispatched: dict[int, _Dispatched] = {}
        self._claimed: dict[int, str] = {}

    async def dispatch(self, groups: Iterable[tuple[int, int, int]], workers: int) -> None:
        """Publishes tasks for (index, version, row), divided among `workers`."""
        now, began = asyncio.get_running_loop().time(), time.time_ns()
        tasks: list[Task] = []
        for version, same in groupby(sorted(groups, key=lambda group: (group[1], group[0])), key=lambda group: group[1]):
            members = list(same)
            size = max(1, min(_MAX_GROUPS_PER_TASK, -(-len(members) // max(1, workers))))
            tasks += [self._task(version, part, began) for part in _batched(members, size)]
            for index, _, _ in members:
                group = self._dispatched.setdefault(index, _Dispatched(since=now))
                PROCESS.count("gradbus.groups.dispatched", 1, {"gradbus.dispatch": "again" if group.attempts else "first"})
                group.last, group.attempts = now, group.attempts + 1
        await self._queue.publish(tasks)
        self._traces.dispatched(tasks, began)

    def forget(self, indexes: Iterable[int]) -> None:
        """These groups need no dispatch any more."""
        for index in indexes:
            self._dispatched.pop(index, None)

    def age(self, index: int) -> float:
        """Seconds since `index` was first dispatched or its age was last reset; 0 if it was not dispatched."""
        group = self._dispatched.get(index)
        return asyncio.get_running_loop().time() - group.since if group else 0.0

    def reset_age(self, indexes: Iterable[int]) -> None:
        """Starts the age of these groups anew, because nobody could work on them until now."""
        now = asyncio.get_running_loop().time()
        for index in indexes:
            if (group := self._dispatched.get(index)) is not None:
                group.since = now

    def overdue(self, wanted: Mapping[int, int], workers: Sequence[WorkerPresence]) -> list[int]:
        """Of `wanted` (index to version), the groups that no live worker claims and that have waited long enough.

        A group is overdue at once if its claimant has gone, or if this dispatcher never dispatched it.
        """
        claimed = {index: worker.incarnation for worker in workers for index in self._tasks.claims(worker)}
        alive = {worker.incarnation for worker in workers}
        now = asyncio.get_running_loop().time()
        found = []
        for index in wanted:
            if index in claimed:
                continue
            group = self._dispatched.get(index)
            orphaned = index in self._claimed and self._claimed[index] not in alive
            if group is None or orphaned or now - group.last > _redispatch_delay(group.attempts):
                found.append(index)
        self._claimed = claimed
        return found

    async def redispatch(self, overdue: Sequence[int], versions: Mapping[int, int], rows: Mapping[int, int], workers: int) -> None:
        """Dispatches overdue groups, some for the first time. The others wait as long as the queue holds tasks that nobody has fetched."""
        lost = [index for index in overdue if index in self._dispatched]
        if lost and await self._queue.waiting() > 0:
            now = asyncio.get_running_loop().time()
            for index in lost:
                self._dispatched[index].last = now
            self.reset_age(lost)
            overdue, lost = [index for index in overdue if index not in self._dispatched], []
        if lost:
            _log.info("groups_redispatched", run_id=self._run_id, kind=int(self._tasks.kind), groups=len(lost), lowest=min(lost))
        if overdue:
            await self.dispatch([(index, versions[index], rows[index]) for index in overdue], workers)

    def _task(self, version: int, members: Iterable[tuple[int, int, int]], began: int) -> Task:
        return Task(
            task_id=f"{self._tasks.kind}.{version}.{next(self._serial)}",
            run_id=self._run_id,
            kind=self._tasks.kind,
            version=version,
            groups=[GroupTask(index=index, row=row, traceparent=self._traces.begin(index, began)) for index, _, row in members],
        )


def _redispatch_delay(attempts: int) -> float:
    """Seconds to wait for a group that was dispatched `attempts` times: doubled each time, up to a bound."""
    return min(_MAX_REDISPATCH_SECONDS, _REDISPATCH_SECONDS * 2.0 ** min(attempts - 1, 10))


def _batched(members: Sequence[tuple[int, int, int]], size: int) -> list[Sequence[tuple[int, int, int]]]:
    return [members[at : at + size] for at in range(0, len(members), size)]

"""Assigns workers to runs. A worker serves one run at a time; assignments change by compare-and-set."""

from __future__ import annotations

import asyncio
import contextlib
import json
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress, islice
from typing import Final, NamedTuple

from gradbus.aio.tasks import map_bounded
from gradbus.bus import Bucket, Conflict, View
from gradbus.control.failures import MOST_FAILURES
from gradbus.control.live_workers import LiveWorkers, NameGroups
from gradbus.control.runs import Role, WorkerPresence

RUN_ROLES: Final[tuple[Role, ...]] = ("trainer", "rollout")
"""Roles whose workers serve one run at a time."""
_PARALLEL: Final = 32
"""Assignments that are written at a time: each waits for NATS's disk."""


class _Place(NamedTuple):
    """Where a live worker stands."""

    role: Role
    run_id: str
    """To which it is assigned; empty: it is free."""
    serves: bool = False
    """Whether it has taken that run up."""
    queue: str = ""
    """Of a free trainer."""


class WorkerPool:
    """Heartbeats and assignments of all workers, as last seen, each worker in one place.

    A question about a run costs what the run's own workers cost, and a heartbeat the same however many workers and runs there are.
    """

    def __init__(self, assignments: Bucket, workers: View, assigned: View) -> None:
        self._assignments = assignments
        self._workers = workers
        self._assigned = assigned
        self._of_run = NameGroups[str]()
        """Workers by the run to which they are assigned, present or not."""
        self._live = NameGroups[_Place]()
        self._of_queue = NameGroups[str]()
        """Live trainers by queue."""
        self._trainers = Counter[str]()
        """Live trainers by run, only of runs that have one."""
        self._trained: list[str] = []
        """Those runs, oldest first."""
        self._trainer_moved = asyncio.Event()
        self.live = LiveWorkers(workers)
        assigned.listen(self._on_assignment)
        self.live.listen(self._move)

    def serving(self, run_id: str, role: Role) -> list[WorkerPresence]:
        """Live workers of a role that are assigned to the run and have taken it up."""
        return self._presences(self._live.of(_Place(role, run_id, True)))

    def count_serving(self, run_id: str, role: Role) -> int:
        """Number of the workers that `serving` returns."""
        return len(self._live.of(_Place(role, run_id, True)))

    def has_free(self, role: Role, queue: str = "") -> bool:
        """Whether a live worker of the role, and of trainers of the queue, is assigned to no run."""
        return bool(self._live.of(_Place(role, "", queue=queue)))

    def trainers_of(self, queue: str) -> Sequence[str]:
        """Names of the live trainers of a queue, in order, as of now."""
        return self._of_queue.of(queue)

    def assigned_trainers(self, queue: str, most: int) -> list[tuple[str, str]]:
        """The first live trainers of a queue that are assigned to a run, each with its run, in order of name."""
        return list(islice(((name, run_id) for name in self.trainers_of(queue) if (run_id := self.run_of(name))), most))

    def count_assigned_trainers(self, queue: str) -> int:
        """Number of the live trainers of a queue that are assigned to a run."""
        return len(self.trainers_of(queue)) - len(self._live.of(_Place("trainer", "", queue=queue)))

    def run_fault(self, run_id: str) -> str:
        """Why no worker can serve the run, else empty.

        A worker reports a fault of the run itself, or all workers of a role that the run has failed at it again and again: a broken
        machine ends no run that another one serves.
        """
        for role in RUN_ROLES:
            workers = self._presences(self._held(run_id, role))
            if worker := next((worker for worker in workers if worker.run_id == run_id and worker.fatal), None):
                return worker.trouble
            if workers and all(worker.run_id == run_id and worker.failures >= MOST_FAILURES for worker in workers):
                worker = workers[0]
                failed = f"{worker.worker} failed {worker.failures} times in the same way"
                return f"{failed}: {worker.failure}; correct what it names, or look into the worker's log, and submit again"
        return ""

    def run_of(self, worker: str) -> str:
        """The run a worker is assigned to, or empty."""
        return self._of_run.group(worker) or ""

    def assigned_runs(self) -> set[str]:
        """Runs that have a worker, present or not."""
        return set(self._of_run)

    def runs_with_trainers(self) -> Sequence[str]:
        """Runs that have a live trainer, oldest first."""
        return tuple(self._trained)

    async def wait_for_trainers(self, seconds: float) -> None:
        """Returns when a trainer came, went, or changed its run, after so many seconds at the latest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._trainer_moved.wait()

    async def catch_up(self) -> None:
        """Returns once the assignments show every write that NATS stored before the call. Raises an error of NATS, or TimeoutError."""
        await self._assigned.catch_up()

    def assigned_to(self, run_id: str) -> list[str]:
        """Names of all workers assigned to the run, present or not."""
        return list(self._of_run.of(run_id))

    async def claim(self, run_id: str, role: Role, most: int | None = None, queue: str = "") -> list[str]:
        """Assigns up to `most` free workers of a role, and of trainers of the queue, to the run; returns their names."""
        taken: list[str] = []
        free = iter(tuple(self._live.of(_Place(role, "", queue=queue))))
        while batch := list(islice(free, None if most is None else most - len(taken))):
            is_taken = await map_bounded(lambda worker: self._assign(worker, run_id), batch, _PARALLEL)
            taken += compress(batch, is_taken)
        return taken

    async def share_rollouts(self, run_id: str) -> None:
        """Takes free rollouts up to the run's share; a run above its share gives some back while others are short and none is free.

        The share is an equal part among the runs with a trainer; the oldest runs get the remainder.
        """
        held, share = self._held(run_id, "rollout"), self._share(run_id)
        if len(held) < share:
            await self.claim(run_id, "rollout", most=share - len(held))
        elif len(held) > share and not self.has_free("rollout"):
            short = sum(max(0, self._share(run) - self._count_held(run, "rollout")) for run in self._trained)
            returned = held[len(held) - min(short, len(held) - share) :]
            await map_bounded(lambda worker: self._free(worker, run_id), returned, _PARALLEL)

    async def keep_trainer(self, run_id: str, queue: str) -> bool:
        """Whether a live trainer is assigned to the run; replaces a trainer that is gone if another of the queue is free."""
        if self._trainers[run_id]:
            return True
        before = self.assigned_to(run_id)
        if not await self.claim(run_id, "trainer", most=1, queue=queue):
            return False
        for worker in before:
            if worker not in self._workers.entries:
                await self._free(worker, run_id)
        return True

    async def release(self, run_id: str) -> None:
        """Frees every worker of the run."""
        await map_bounded(lambda worker: self._free(worker, run_id), self.assigned_to(run_id), _PARALLEL)

    def _share(self, run_id: str) -> int:
        """Rollouts of a run: one of the runs with a trainer, or one more beside them."""
        rank = bisect_left(self._trained, run_id)
        runs = len(self._trained) + (self._trained[rank : rank + 1] != [run_id])
        live = len(self.live.names("rollout"))
        return live // runs + (rank < live % runs)

    def _held(self, run_id: str, role: Role) -> list[str]:
        """Live workers of a role that are assigned to the run, in order of name."""
        return sorted(chain(self._live.of(_Place(role, run_id, True)), self._live.of(_Place(role, run_id, False))))

    def _count_held(self, run_id: str, role: Role) -> int:
        return len(self._live.of(_Place(role, run_id, True))) + len(self._live.of(_Place(role, run_id, False)))

    def _presences(self, names: Sequence[str]) -> list[WorkerPresence]:
        return [worker for name in names if (worker := self.live.get(name)) is not None]

    def _on_assignment(self, worker: str) -> None:
        value = self._assigned.get(worker)
        self._of_run.move(worker, str(json.loads(value)) if value else None)
        self._move(worker)

    def _move(self, name: str) -> None:
        """Puts a worker into its place, after a heartbeat or an assignment."""
        worker, run_id, before = self.live.get(name), self.run_of(name), self._live.group(name)
        queue = worker.queue if worker is not None and worker.role == "trainer" else ""
        place = None if worker is None else _Place(worker.role, run_id, bool(run_id) and worker.run_id == run_id, "" if run_id else queue)
        self._of_queue.move(name, queue or None)
        if place == before:
            return
        self._live.move(name, place)
        self._count_trainer(before, -1)
        self._count_trainer(place, 1)
        if "trainer" in {one.role for one in (before, place) if one is not None}:
            self._trainer_moved.set()
            self._trainer_moved = asyncio.Event()

    def _count_trainer(self, place: _Place | None, change: int) -> None:
        if place is None or place.role != "trainer" or not place.run_id:
            return
        before, now = self._trainers[place.run_id], self._trainers[place.run_id] + change
        self._trainers[place.run_id] = now
        if not now:
            del self._trainers[place.run_id], self._trained[bisect_left(self._trained, place.run_id)]
        elif not before:
            insort(self._trained, place.run_id)

    async def _free(self, worker: str, run_id: str) -> None:
        """Frees a worker of this run alone: the view may be behind, and the worker assigned to another run since."""
        current = await self._assignments.get(worker)
        if current is not None and json.loads(current.value) == run_id:
            with contextlib.suppress(Conflict):
                await self._assignments.delete(worker, current.revision)

    async def _assign(self, worker: str, run_id: str) -> bool:
        try:
            await self._assignments.create(worker, json.dumps(run_id).encode())
        except Conflict:
            return False
        return True

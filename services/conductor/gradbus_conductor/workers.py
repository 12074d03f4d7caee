"""Assigns workers to runs. A worker serves one run at a time; assignments change by compare-and-set."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from gradbus.bus import Bucket, Conflict, View
from gradbus.control.failures import MOST_FAILURES
from gradbus.control.runs import Role, WorkerPresence
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
RUN_ROLES: Final[tuple[Role, ...]] = ("trainer", "rollout")
"""Roles whose workers serve one run at a time."""


class WorkerPool:
    """Heartbeats and assignments of all workers, as last seen."""

    def __init__(self, assignments: Bucket, workers: View, assigned: View) -> None:
        self._assignments = assignments
        self._workers = workers
        self._assigned = assigned

    def present(self, role: Role) -> list[WorkerPresence]:
        """Live workers of a role, in order of name."""
        workers = [_presence(key, value) for key, value in sorted(self._workers.entries.items())]
        return [presence for presence in workers if presence is not None and presence.role == role]

    def serving(self, run_id: str, role: Role) -> list[WorkerPresence]:
        """Live workers of a role that are assigned to the run and have taken it up."""
        return [worker for worker in self.present(role) if worker.run_id == run_id and self.run_of(worker.worker) == run_id]

    def run_fault(self, run_id: str) -> str:
        """Why no worker can serve the run, else empty.

        A worker reports a fault of the run itself, or all workers of a role that the run has failed at it again and again: a broken
        machine ends no run that another one serves.
        """
        for role in RUN_ROLES:
            workers = [worker for worker in self.present(role) if self.run_of(worker.worker) == run_id]
            if worker := next((worker for worker in workers if worker.run_id == run_id and worker.fatal), None):
                return worker.trouble
            if workers and all(worker.run_id == run_id and worker.failures >= MOST_FAILURES for worker in workers):
                worker = workers[0]
                failed = f"{worker.worker} failed {worker.failures} times in the same way"
                return f"{failed}: {worker.failure}; correct what it names, or look into the worker's log, and submit again"
        return ""

    def run_of(self, worker: str) -> str:
        """The run a worker is assigned to, or empty."""
        value = self._assigned.get(worker)
        return str(json.loads(value)) if value else ""

    def assigned_runs(self) -> set[str]:
        """Runs that have a worker, present or not."""
        return {self.run_of(worker) for worker in self._assigned.entries}

    def runs_with_trainers(self) -> list[str]:
        """Runs that have a live trainer."""
        return [run_id for worker in self.present("trainer") if (run_id := self.run_of(worker.worker))]

    async def catch_up(self) -> None:
        """Returns once the assignments show every write that NATS stored before the call. Raises an error of NATS, or TimeoutError."""
        await self._assigned.catch_up()

    def assigned_to(self, run_id: str) -> list[str]:
        """Names of all workers assigned to the run, present or not."""
        return [worker for worker in self._assigned.entries if self.run_of(worker) == run_id]

    async def claim(self, run_id: str, role: Role, most: int | None = None) -> list[str]:
        """Assigns up to `most` free workers of a role to the run; returns their names."""
        taken: list[str] = []
        for worker in self.present(role):
            if most is not None and len(taken) >= most:
                break
            if not self.run_of(worker.worker) and await self._assign(worker.worker, run_id):
                taken.append(worker.worker)
        return taken

    async def share_rollouts(self, run_id: str) -> None:
        """Takes free rollouts up to the run's share; a run above its share gives one back while another run is short and none is free.

        The share is an equal part among the runs with a trainer; the oldest runs get the remainder.
        """
        live = [worker.worker for worker in self.present("rollout")]
        runs = sorted({run_id} | {self.run_of(trainer.worker) for trainer in self.present("trainer")} - {""})
        shares = {run: len(live) // len(runs) + (rank < len(live) % len(runs)) for rank, run in enumerate(runs)}
        own = [worker for worker in live if self.run_of(worker) == run_id]
        held = Counter(self.run_of(worker) for worker in live)
        if len(own) < shares[run_id]:
            await self.claim(run_id, "rollout", most=shares[run_id] - len(own))
        elif len(own) > shares[run_id] and not held[""] and any(held[run] < share for run, share in shares.items()):
            await self._free(own[-1], run_id)

    async def keep_trainer(self, run_id: str) -> bool:
        """Whether a live trainer is assigned to the run; replaces a trainer that is gone if another is free."""
        assigned = self.assigned_to(run_id)
        if any(worker.worker in assigned for worker in self.present("trainer")):
            return True
        if not await self.claim(run_id, "trainer", most=1):
            return False
        for worker in assigned:
            if worker not in self._workers.entries:
                await self._free(worker, run_id)
        return True

    async def release(self, run_id: str) -> None:
        """Frees every worker of the run."""
        for worker in self.assigned_to(run_id):
            await self._free(worker, run_id)

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


@lru_cache(maxsize=1024)  # read on every wake-up, written once a second
def _presence(key: str, value: bytes) -> WorkerPresence | None:
    try:
        return WorkerPresence.model_validate_json(value)
    except ValidationError as error:
        _log.warning("presence_unreadable", worker=key, error=str(error))
        return None

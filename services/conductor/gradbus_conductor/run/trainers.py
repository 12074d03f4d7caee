"""The trainer of a run: its turn in the queue, a lost trainer that is replaced, and one that is yielded to another run."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from gradbus.bus import Bucket
from gradbus.control.runs import RunRecord, RunState
from gradbus.spec import DEFAULT_QUEUE
from gradbus_conductor.run.listing import MOST_NAMED, listed
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.workers import WorkerPool

_REPLACE_SECONDS = 10.0
"""Time for a trainer to restart under its name before the run takes another one."""
_YIELD_SECONDS: Final[dict[RunState, float]] = {"paused": 3.0, "waiting_for_reward": 60.0, "waiting_for_environment": 60.0}
"""Time without a new version after which a run in this state has come to rest. A scorer or an environment may restart meanwhile."""


class TrainerQueue:
    """A run's turn among the runs that wait for a trainer."""

    def __init__(self, record: RunRecord, runs_bucket: Bucket, runs: RunIndex, pool: WorkerPool) -> None:
        self._run_id, self._queue = record.run_id, record.spec.queue
        self._bucket = runs_bucket
        self._runs = runs
        self._pool = pool

    async def acquire(self) -> bool:
        """Whether a live trainer is assigned to the run; assigns a free one if it is the run's turn.

        A run that is in progress and lost its trainer together with its conductor waits for no turn.
        """
        if self._run_id in self._pool.runs_with_trainers():
            return True
        if self._runs.place(self._run_id) == "queue" and self._first() != self._run_id:
            return False
        if not await self._pool.keep_trainer(self._run_id, self._queue):
            return False
        await self._bucket.put(f"{self._runs.key_of(self._run_id)}.served", str(time.time_ns()).encode())
        return True

    def waiting_for(self) -> str:
        """What the run waits for: who has the trainers, or which run is first."""
        what = "a free trainer" if self._queue == DEFAULT_QUEUE else f"a free trainer of queue {self._queue}"
        if not self._pool.trainers_of(self._queue):
            setting = "" if self._queue == DEFAULT_QUEUE else f" with GRADBUS_QUEUE={self._queue}"
            return f"{what}: none is running; start one{setting}, or look into its log"
        first = self._first()
        if self._pool.has_free("trainer", self._queue) and first not in {"", self._run_id}:
            is_own = self._runs.key_of(first) == self._runs.key_of(self._run_id)
            return f"{what}: run {first} comes first{'' if is_own else ', for API keys take turns'}"
        assigned = self._pool.assigned_trainers(self._queue, MOST_NAMED)
        shown = [f"{worker} has run {run_id}, {self._state_text(run_id)}" for worker, run_id in assigned]
        return f"{what}: {listed(shown, self._pool.count_assigned_trainers(self._queue))}"

    def _first(self) -> str:
        """The run that gets the next trainer; empty if none waits."""
        return next(self._runs.upcoming(self._pool.runs_with_trainers(), self._queue), "")

    def _state_text(self, run_id: str) -> str:
        state = self._runs.state(run_id)
        return "which is paused: resume or cancel it" if state == "paused" else str(state or "starting").replace("_", " ")


class TrainerWatch:
    """Watches the trainer of a run in progress."""

    def __init__(self, record: RunRecord, runs: RunIndex, pool: WorkerPool) -> None:
        self._run_id, self._queue = record.run_id, record.spec.queue
        self._runs = runs
        self._pool = pool
        self._last_seen = self._resting_since = asyncio.get_running_loop().time()
        self._seen: tuple[int, RunState] | None = None

    async def replace_lost(self) -> None:
        """Assigns a free trainer if the run's own has been away for `_REPLACE_SECONDS`."""
        now = asyncio.get_running_loop().time()
        if self._pool.serving(self._run_id, "trainer"):
            self._last_seen = now
        elif now - self._last_seen > _REPLACE_SECONDS:
            await self._pool.keep_trainer(self._run_id, self._queue)

    def should_yield(self, version: int, state: RunState) -> bool:
        """Whether the run rests at `version`, paused or waiting for the other side, while another waits for a trainer and none is free."""
        now = asyncio.get_running_loop().time()
        if (version, state) != self._seen:
            self._seen, self._resting_since = (version, state), now
        return state in _YIELD_SECONDS and now - self._resting_since > _YIELD_SECONDS[state] and self._is_trainer_wanted()

    def _is_trainer_wanted(self) -> bool:
        upcoming = self._runs.upcoming(self._pool.runs_with_trainers(), self._queue)
        waits = any(name != self._run_id for name in upcoming)  # the view may still show this run as queued
        return waits and not self._pool.has_free("trainer", self._queue)

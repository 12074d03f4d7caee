"""The trainer of a run: waiting for one in the queue, replacing one that is lost, and yielding it to another run while paused."""

from __future__ import annotations

import asyncio

from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.workers import WorkerPool

_REPLACE_SECONDS = 10.0
"""Time for a trainer to restart under its name before the run takes another one."""
_YIELD_SECONDS = 3.0
"""Time without a new version after which a paused run has come to rest."""


class TrainerQueue:
    """A run's turn among the runs that wait for a trainer: the oldest comes first."""

    def __init__(self, run_id: str, runs: RunIndex, pool: WorkerPool) -> None:
        self._run_id = run_id
        self._runs = runs
        self._pool = pool

    async def acquire(self) -> bool:
        """Whether a live trainer is assigned to the run; assigns a free one if it is the run's turn."""
        return not self._older_run() and await self._pool.keep_trainer(self._run_id)

    def waiting_for(self) -> str:
        """What the run waits for: who has the trainers, or which run is first."""
        assigned = [(worker.worker, self._pool.run_of(worker.worker)) for worker in self._pool.present("trainer")]
        if not assigned:
            return "a free trainer: none is running; start one, or look into its log"
        if any(not run_id for _, run_id in assigned) and (older := self._older_run()):
            return f"a free trainer: run {older} comes first"
        return "a free trainer: " + ", ".join(
            f"{worker} has run {run_id}, {self._state_text(run_id)}" for worker, run_id in assigned if run_id
        )

    def _older_run(self) -> str:
        """The oldest queued run if it is older than this one, else empty."""
        oldest = next(self._runs.queued(), "")
        return oldest if oldest < self._run_id else ""

    def _state_text(self, run_id: str) -> str:
        state = self._runs.state(run_id)
        return "which is paused: resume or cancel it" if state == "paused" else str(state or "starting").replace("_", " ")


class TrainerWatch:
    """Watches the trainer of a run in progress."""

    def __init__(self, run_id: str, runs: RunIndex, pool: WorkerPool) -> None:
        self._run_id = run_id
        self._runs = runs
        self._pool = pool
        self._last_seen = self._progress_at = asyncio.get_running_loop().time()
        self._version = -1

    async def replace_lost(self) -> None:
        """Assigns a free trainer if the run's own has been away for `_REPLACE_SECONDS`."""
        now = asyncio.get_running_loop().time()
        if self._pool.serving(self._run_id, "trainer"):
            self._last_seen = now
        elif now - self._last_seen > _REPLACE_SECONDS:
            await self._pool.keep_trainer(self._run_id)

    def should_yield(self, version: int, *, paused: bool) -> bool:
        """Whether the run is paused and at rest at `version` while another run waits for a trainer and none is free."""
        now = asyncio.get_running_loop().time()
        if not paused or version != self._version:
            self._version, self._progress_at = version, now
        return now - self._progress_at > _YIELD_SECONDS and self._is_trainer_wanted()

    def _is_trainer_wanted(self) -> bool:
        waits = any(name != self._run_id for name in self._runs.queued())  # the view may still show this run as queued
        return waits and all(self._pool.run_of(trainer.worker) for trainer in self._pool.present("trainer"))

"""Names what a run waits for, and who owes it, when nothing moves."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gradbus.control.runs import WorkerPresence

STALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Blockers:
    """Who could owe what."""

    trainers: Sequence[WorkerPresence]
    rollouts: Sequence[WorkerPresence]
    outstanding: Collection[int]
    """Groups dispatched and not in the log."""
    evaluated: int | None = None
    """The version under evaluation."""

    def __str__(self) -> str:
        for worker in (*self.trainers, *self.rollouts):
            if worker.trouble:
                return f"{worker.worker} is in trouble: {worker.trouble}"
        if not self.trainers:
            return "no trainer serves the run; start one, or look into the log of the one that is assigned"
        held_out = "" if self.evaluated is None else f"the evaluation of version {self.evaluated}"
        if (self.outstanding or held_out) and not self.rollouts:
            what = f"{len(self.outstanding)} groups wait" if self.outstanding else f"{held_out} waits"
            return f"{what} for a rollout worker and none serves the run; start one, or look into its log"
        names = ", ".join(worker.worker for worker in self.rollouts)
        if self.outstanding:
            return f"{len(self.outstanding)} groups, first {min(self.outstanding)}, owed by {names} or the scorer"
        if held_out:
            return f"{held_out}, owed by {names} or the scorer"
        names = ", ".join(worker.worker for worker in self.trainers)
        return f"the next version, owed by {names}"


class StallDetector:
    """Watches numbers that a healthy run keeps changing."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._since = 0.0

    def reason(self, version: int, outstanding: int, debt: Blockers) -> str:
        """Empty while version or number of outstanding groups change; then what is waited for and who owes it."""
        now = asyncio.get_running_loop().time()
        if (version, outstanding) != self._seen:
            self._seen, self._since = (version, outstanding), now
        if now - self._since < STALL_SECONDS:
            return ""
        return f"something to move, for {now - self._since:.0f} s now: {debt}"

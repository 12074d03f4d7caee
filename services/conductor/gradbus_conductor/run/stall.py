"""Names what a run waits for, and at which worker, when it makes no progress."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gradbus.control.runs import WorkerPresence
from gradbus_conductor.run.listing import listed

STALL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Blockers:
    """The workers and the work that may hold a run up; as text, what it waits for."""

    trainers: Sequence[WorkerPresence]
    rollouts: Sequence[WorkerPresence]
    outstanding: Collection[int]
    """Groups dispatched and not in the log."""
    evaluated: int | None = None
    """The version under evaluation."""

    @property
    def preparing(self) -> bool:
        """Whether no rollout can sample yet, but some prepare for it: that takes minutes where a server starts, and is no stall."""
        return bool(self.rollouts) and all(worker.preparing for worker in self.rollouts)

    def __str__(self) -> str:
        return self._unable() or self._owed()

    def _unable(self) -> str:
        """Workers that cannot work yet or any more; empty if all can."""
        for worker in (*self.trainers, *self.rollouts):
            if worker.trouble:
                return f"{worker.worker}, which is in trouble: {worker.trouble}"
        if not self.trainers:
            return "a trainer: none serves the run; start one, or look into the log of the one that is assigned"
        not_ready = [*(trainer for trainer in self.trainers if trainer.preparing), *(self.rollouts if self.preparing else ())]
        return listed([f"{worker.worker}, which {worker.preparing}" for worker in not_ready])

    def _owed(self) -> str:
        """Work that is under way, and where."""
        evaluation = "" if self.evaluated is None else f"the evaluation of version {self.evaluated}"
        if (self.outstanding or evaluation) and not self.rollouts:
            work = f"{len(self.outstanding)} groups" if self.outstanding else evaluation
            return f"a rollout worker for {work}: none serves the run; start one, or look into its log"
        names = listed([worker.worker for worker in self.rollouts])
        if self.outstanding:
            return f"{len(self.outstanding)} groups outstanding (lowest {min(self.outstanding)}) at {names} or the scorer"
        if evaluation:
            return f"{evaluation} at {names} or the scorer"
        return f"the next version from {', '.join(worker.worker for worker in self.trainers)}"


class StallDetector:
    """Watches values that change all the time in a healthy run."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._since = 0.0
        self._answered_at = asyncio.get_running_loop().time()

    def environment_failure(self, rollouts: Sequence[WorkerPresence]) -> str:
        """Why the run's environment does not answer, once no rollout with work has got an answer for `STALL_SECONDS`; else empty.

        An idle rollout asks nothing, and says nothing of the environment.
        """
        now = asyncio.get_running_loop().time()
        working = [worker for worker in rollouts if worker.awaits_environment or worker.claims or worker.evaluation_claims]
        if not working or not all(worker.awaits_environment for worker in working):
            self._answered_at = now
        return working[0].trouble if working and now - self._answered_at > STALL_SECONDS else ""

    def reason(self, version: int, outstanding: int, blockers: Blockers) -> str:
        """Empty while the version or the number of outstanding groups changes; then what the run waits for, and how long.

        What rollouts prepare is told at once.
        """
        now = asyncio.get_running_loop().time()
        if (version, outstanding) != self._seen:
            self._seen, self._since = (version, outstanding), now
        if now - self._since < STALL_SECONDS:
            return str(blockers) if blockers.preparing else ""
        return f"{blockers}; no progress for {now - self._since:.0f} s"

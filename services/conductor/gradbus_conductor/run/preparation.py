"""Counts the workers that die while they prepare a run: a model that kills whoever loads it must not hold workers for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gradbus.control.runs import Role, WorkerPresence
from gradbus_conductor.workers import RUN_ROLES

_MOST_DEATHS: Final = 5


class PreparationWatch:
    """Deaths of a run's workers before they were ready, in a row: the first that is ready clears those of its role."""

    def __init__(self, run_id: str, present: Callable[[Role], Sequence[WorkerPresence]]) -> None:
        """`present` gives the live workers of a role."""
        self._run_id = run_id
        self._present = present
        self._deaths = {role: _Deaths() for role in RUN_ROLES}

    def fault(self) -> str:
        """Looks at the workers; why the run cannot be prepared, empty as long as it may be."""
        for role, deaths in self._deaths.items():
            deaths.look(self._run_id, self._present(role))
            if deaths.end_run:
                return (
                    f"{deaths.count} {role} processes in a row ended while they prepared the run, the last was {deaths.last}: often the "
                    "model or the data need more memory than a worker has; look into its log, and submit again"
                )
        return ""


class _Deaths:
    """Of one role's workers. A death follows another if its worker began to prepare after that one.

    So workers that disappear together count once: their machine failed, or NATS was away and their heartbeats expired.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._preparing: dict[str, str] = {}
        """Incarnation to name."""
        self._before: dict[str, int] = {}
        """Incarnation to the deaths before it began. One that was away keeps its number."""

    @property
    def end_run(self) -> bool:
        """Whether enough died. Not while a worker prepares that began before: a broken machine ends no run that others can prepare."""
        return self.count >= _MOST_DEATHS and all(self._before[incarnation] >= _MOST_DEATHS for incarnation in self._preparing)

    def look(self, run_id: str, workers: Sequence[WorkerPresence]) -> None:
        """Compares the live workers with those seen before."""
        alive = {worker.incarnation for worker in workers}
        for incarnation, name in self._preparing.items():
            if incarnation not in alive:
                self.count, self.last = max(self.count, self._before[incarnation] + 1), name
        own = [worker for worker in workers if worker.run_id == run_id]
        if any(worker.reached >= 0 for worker in own):
            self.count = 0
            self._before.clear()
        self._preparing = {worker.incarnation: worker.worker for worker in own if worker.reached < 0}
        for incarnation in self._preparing:
            self._before.setdefault(incarnation, self.count)

"""Counts the workers that die at a run, in a row: a run that kills whoever prepares or trains it must not hold workers for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gradbus.control.live_workers import LiveWorkers
from gradbus.control.runs import WorkerPresence
from gradbus_conductor.workers import RUN_ROLES

_MOST_DEATHS: Final = 5
_MOST_STEP_DEATHS: Final = 8
"""More than of workers that prepare: whoever trains was able to load the run, so a machine that fails or is taken away is more likely."""


class PreparationWatch:
    """Deaths of a run's workers before they were ready, in a row: the first that is ready clears those of its role."""

    def __init__(self, run_id: str, workers: LiveWorkers) -> None:
        self._run_id = run_id
        self._workers = workers
        self._deaths = {role: _Deaths(_MOST_DEATHS) for role in RUN_ROLES}

    def fault(self) -> str:
        """Looks at the workers; why the run cannot be prepared, empty as long as it may be."""
        for role, deaths in self._deaths.items():
            own = self._workers.of_run(self._run_id, role)
            preparing = [worker for worker in own if worker.reached < 0]
            deaths.look(self._workers.is_alive, preparing, is_over=len(preparing) < len(own))
            if deaths.end_run:
                return (
                    f"{deaths.count} {role} processes in a row ended while they prepared the run, the last was {deaths.last}: often the "
                    "model or the data need more memory than a worker has; look into its log, and submit again"
                )
        return ""


class StepWatch:
    """Deaths of a run's trainers that had what the next version needs, in a row: a new version clears them."""

    def __init__(self, run_id: str, workers: LiveWorkers) -> None:
        self._run_id = run_id
        self._workers = workers
        self._deaths = _Deaths(_MOST_STEP_DEATHS)
        self._version = -1

    def fault(self, version: int, *, has_work: bool) -> str:
        """Looks at the trainers; why the run cannot come further than `version`, its highest, empty as long as it may.

        `has_work`: whether a trainer can go on. Those that die while the run is paused or waits for groups do not count.
        """
        own = self._workers.of_run(self._run_id, "trainer")
        self._deaths.look(self._workers.is_alive, own, is_over=version > self._version or not has_work)
        self._version = version
        if not self._deaths.end_run:
            return ""
        return (
            f"{self._deaths.count} trainer processes in a row ended after version {version} and made no other, the last was "
            f"{self._deaths.last}: often a step needs more memory than a trainer has; look into its log, and submit again with smaller or "
            "shorter groups"
        )


class _Deaths:
    """Of one role's workers. A death follows another if its worker began after that one.

    So workers that disappear together count once: their machine failed, or NATS was away and their heartbeats expired.
    """

    def __init__(self, most: int) -> None:
        self.count = 0
        self.last = ""
        self._most = most
        self._watched: dict[str, str] = {}
        """Incarnation to name."""
        self._before: dict[str, int] = {}
        """Incarnation to the deaths before it began. One that was away keeps its number."""

    @property
    def end_run(self) -> bool:
        """Whether enough died. Not while a worker lives that began before: a broken machine ends no run that others can serve."""
        return self.count >= self._most and all(self._before[incarnation] >= self._most for incarnation in self._watched)

    def look(self, is_alive: Callable[[str], bool], watched: Sequence[WorkerPresence], *, is_over: bool) -> None:
        """Asks which of those that were watched before live. `is_over`: the row has ended. `watched`: those whose death counts next."""
        for incarnation, name in self._watched.items():
            if not is_alive(incarnation):
                self.count, self.last = max(self.count, self._before[incarnation] + 1), name
        if is_over:
            self.count = 0
            self._before.clear()
        self._watched = {worker.incarnation: worker.worker for worker in watched}
        for incarnation in self._watched:
            self._before.setdefault(incarnation, self.count)

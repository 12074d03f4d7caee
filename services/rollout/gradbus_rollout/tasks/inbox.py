"""Tasks a worker has fetched: what it claims, what it can run now, what it sets aside. No wires here."""

from __future__ import annotations

from collections.abc import Callable

from gradbus.bus import Delivery
from gradbus.v1.task_pb2 import Task, TaskKind


class TaskInbox:
    """Holds tasks from the moment they are fetched until their groups lie in the buffer."""

    def __init__(self) -> None:
        self._aside: list[Delivery] = []
        self._running: list[Delivery] = []

    def add(self, delivery: Delivery) -> None:
        """Takes a task; groups that this worker has already are left out."""
        task = delivery.task
        known = {(held.kind, held.version, group.index) for held in self._held() for group in held.groups}
        fresh = [group for group in task.groups if (task.kind, task.version, group.index) not in known]
        if fresh:
            kept = Task()
            kept.CopyFrom(task)
            del kept.groups[:]
            kept.groups.extend(fresh)
            self._aside.append(Delivery(kept, delivery.received))

    def lowest(self, ready: Callable[[Task], bool]) -> Delivery | None:
        """Among the tasks set aside that are `ready`, one of the lowest version; evaluation first.

        A worker that waited for a later version while an earlier one could run would stop the run for good.
        """
        candidates = [delivery for delivery in self._aside if ready(delivery.task)]
        return min(candidates, key=_urgency, default=None)

    def start(self, delivery: Delivery) -> None:
        """The engine has it now."""
        self._aside.remove(delivery)
        self._running.append(delivery)

    def finish(self, delivery: Delivery) -> None:
        """Its groups lie in the buffer, or it was dropped."""
        for deliveries in (self._aside, self._running):
            if delivery in deliveries:
                deliveries.remove(delivery)

    @property
    def running(self) -> list[Task]:
        """Tasks in the engine or on their way to the buffer."""
        return [delivery.task for delivery in self._running]

    @property
    def claims(self) -> list[int]:
        """Training groups held."""
        return [group.index for task in self._held_of(TaskKind.TASK_KIND_TRAIN) for group in task.groups]

    @property
    def evaluation_claims(self) -> list[tuple[int, int]]:
        """Held-out rows held, as (version, row)."""
        return [(task.version, group.index) for task in self._held_of(TaskKind.TASK_KIND_EVALUATION) for group in task.groups]

    def _held(self) -> list[Task]:
        return [delivery.task for delivery in [*self._running, *self._aside]]

    def _held_of(self, kind: TaskKind) -> list[Task]:
        return [task for task in self._held() if task.kind == kind]


def _urgency(delivery: Delivery) -> tuple[int, bool]:
    return delivery.task.version, delivery.task.kind != TaskKind.TASK_KIND_EVALUATION

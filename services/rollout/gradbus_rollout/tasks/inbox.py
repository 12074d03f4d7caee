"""The tasks that a worker has fetched and not finished: waiting or running. Pure state, without I/O."""

from __future__ import annotations

from collections.abc import Callable

from gradbus.bus import Delivery
from gradbus.v1.task_pb2 import Task, TaskKind


class TaskInbox:
    """Keeps each task from its fetch until its groups are in the buffer. The worker claims every group in it."""

    def __init__(self, groups_at_once: int) -> None:
        """A task of more than `groups_at_once` groups becomes several."""
        self._groups_at_once = groups_at_once
        self._waiting: list[Delivery] = []
        self._running: list[Delivery] = []

    def add(self, delivery: Delivery) -> None:
        """Adds a task, without the groups that are in the inbox already."""
        task = delivery.task
        known = {(claimed.kind, claimed.version, group.index) for claimed in self._tasks() for group in claimed.groups}
        fresh = [group for group in task.groups if (task.kind, task.version, group.index) not in known]
        for start in range(0, len(fresh), self._groups_at_once):
            kept = Task()
            kept.CopyFrom(task)
            del kept.groups[:]
            kept.groups.extend(fresh[start : start + self._groups_at_once])
            self._waiting.append(Delivery(kept, delivery.received))

    def ready(self, can_run: Callable[[Task], bool]) -> list[Delivery]:
        """The waiting tasks that can run."""
        return [delivery for delivery in self._waiting if can_run(delivery.task)]

    def lowest(self, can_run: Callable[[Task], bool]) -> Delivery | None:
        """Of the waiting tasks that can run, one of the lowest version; evaluation before training.

        A worker that waited for a later version while a task of an earlier one can run would stop the run for good.
        """
        return min(self.ready(can_run), key=_urgency, default=None)

    def start(self, delivery: Delivery) -> None:
        """Moves a waiting task to the running ones."""
        self._waiting.remove(delivery)
        self._running.append(delivery)

    def finish(self, delivery: Delivery) -> None:
        """Removes a task whose groups are in the buffer, or that was abandoned."""
        for deliveries in (self._waiting, self._running):
            if delivery in deliveries:
                deliveries.remove(delivery)

    @property
    def running(self) -> list[Task]:
        """Tasks in the engine or on their way to the buffer."""
        return [delivery.task for delivery in self._running]

    @property
    def claims(self) -> list[int]:
        """Indexes of the training groups claimed."""
        return [group.index for task in self._tasks_of(TaskKind.TASK_KIND_TRAIN) for group in task.groups]

    @property
    def evaluation_claims(self) -> list[tuple[int, int]]:
        """Held-out rows claimed, as (version, row)."""
        return [(task.version, group.index) for task in self._tasks_of(TaskKind.TASK_KIND_EVALUATION) for group in task.groups]

    def _tasks(self) -> list[Task]:
        return [delivery.task for delivery in [*self._running, *self._waiting]]

    def _tasks_of(self, kind: TaskKind) -> list[Task]:
        return [task for task in self._tasks() if task.kind == kind]


def _urgency(delivery: Delivery) -> tuple[int, bool]:
    return delivery.task.version, delivery.task.kind != TaskKind.TASK_KIND_EVALUATION

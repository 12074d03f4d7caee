"""Writes a task's sampled groups into the buffer, then publishes the hint that they are there."""

from __future__ import annotations

from collections.abc import Sequence

from redis.exceptions import RedisError

from gradbus import crash_points
from gradbus.bus import Bus, subjects
from gradbus.control.runs import WorkerPresence
from gradbus.experience import GroupStore
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import GroupsSampled, Task, TaskKind
from gradbus_rollout.buffer_wait import BufferWait


class GroupPublisher:
    """Publishes the groups of one worker for one run."""

    def __init__(self, bus: Bus, groups: GroupStore, run_id: str, presence: WorkerPresence) -> None:
        self._bus = bus
        self._groups = groups
        self._run_id = run_id
        self._worker = presence.worker
        self._buffer = BufferWait(presence)

    async def publish(self, task: Task, groups: Sequence[Group]) -> None:
        """Writes the groups, waiting for as long as the buffer is away or full. The message afterwards is only a hint and may be lost.

        Raises SettingsError if the buffer refuses them for ever.
        """
        if not groups:
            return
        crash_points.reached("before-put")
        while True:
            try:
                if task.kind == TaskKind.TASK_KIND_TRAIN:
                    await self._groups.put(groups)
                else:
                    await self._groups.put_evaluation(task.version, groups)
                break
            except (RedisError, OSError) as error:
                await self._buffer.wait(error)
        self._buffer.came_back()
        crash_points.reached("after-put")
        hint = GroupsSampled(
            run_id=self._run_id,
            kind=task.kind,
            version=task.version,
            indexes=[group.index for group in groups],
            worker=self._worker,
        )
        await self._bus.publish(subjects.groups(self._run_id), hint.SerializeToString())

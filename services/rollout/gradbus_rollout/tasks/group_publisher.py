"""Writes a task's sampled groups into the buffer, then publishes the hint that they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis.exceptions import RedisError

from gradbus import crash_points
from gradbus.bus import Bus, subjects
from gradbus.experience import GroupStore
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import GroupsSampled, Task, TaskKind

_log = get_logger(__name__)
_RETRY_SECONDS = 0.5


class GroupPublisher:
    """Publishes the groups of one worker for one run."""

    def __init__(self, bus: Bus, groups: GroupStore, run_id: str, worker: str) -> None:
        self._bus = bus
        self._groups = groups
        self._run_id = run_id
        self._worker = worker

    async def publish(self, task: Task, groups: Sequence[Group]) -> None:
        """Writes the groups, waiting for as long as the buffer is away. The message afterwards is only a hint and may be lost."""
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
                _log.info("buffer_unreachable", run_id=self._run_id, error=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_RETRY_SECONDS)
        crash_points.reached("after-put")
        hint = GroupsSampled(
            run_id=self._run_id,
            kind=task.kind,
            version=task.version,
            indexes=[group.index for group in groups],
            worker=self._worker,
        )
        await self._bus.publish(subjects.groups(self._run_id), hint.SerializeToString())

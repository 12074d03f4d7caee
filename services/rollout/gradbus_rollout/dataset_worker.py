"""The main loop of a run on given responses: rows of the dataset become groups, as samples do in other runs.

    fetch ─▶ rows of the task, encoded ─▶ buffer ─▶ hint

There is no engine, and no version is waited for: the responses are the dataset's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradbus import crash_points
from gradbus.aio.threads import in_run_thread
from gradbus.bus import Bus, TaskQueue
from gradbus.control.runs import RunRecord
from gradbus.errors import DatasetError
from gradbus.experience import GroupStore
from gradbus.formats.tokens import pack_ids
from gradbus.ids import sample_id
from gradbus.process import WorkerHeartbeat
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import FINISH_REASON_STOP
from gradbus.v1.task_pb2 import GroupTask, Task, TaskKind
from gradbus_rollout.run_faults import fatal_for_run
from gradbus_rollout.tasks.group_publisher import GroupPublisher
from gradbus_rollout.tasks.prompts import GivenResponse, PromptTable
from gradbus_rollout.tasks.samples import group_header

ENGINE: Final = "dataset"
"""What stands in a group, in place of an engine's name."""
_TASKS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class DatasetWorkerParts:
    """Dependencies of a worker, opened for one run."""

    bus: Bus
    groups: GroupStore
    training: PromptTable
    evaluation: PromptTable | None
    """None: the run evaluates nothing."""
    heartbeat: WorkerHeartbeat


class DatasetWorker:
    """Serves one run until it is cancelled. Whatever is lost on the way, the conductor asks for again."""

    def __init__(self, record: RunRecord, parts: DatasetWorkerParts) -> None:
        self._run_id = record.run_id
        self._mismatches = record.spec.kind == "kto"
        self._parts = parts
        self._presence = parts.heartbeat.presence
        self._presence.engine = ENGINE
        self._queue = TaskQueue(parts.bus, record.run_id)
        self._publisher = GroupPublisher(parts.bus, parts.groups, record.run_id, self._presence)

    async def serve(self) -> None:
        """Fetches tasks and publishes their rows. Raises DatasetError and ModelError, marked as fatal for the run."""
        while True:
            tasks = [delivery.task for delivery in await self._queue.fetch(_TASKS_AT_ONCE)]
            self._claim(tasks)
            for task in tasks:
                with fatal_for_run(self._presence):
                    groups = await self._groups(task)
                crash_points.reached("mid-encode")
                await self._publisher.publish(task, groups)
                if task.kind == TaskKind.TASK_KIND_TRAIN:
                    self._parts.heartbeat.progressed(max(group.index for group in groups))
            self._claim([])

    def _claim(self, tasks: Sequence[Task]) -> None:
        training = [task for task in tasks if task.kind == TaskKind.TASK_KIND_TRAIN]
        self._presence.claims = [group.index for task in training for group in task.groups]
        self._presence.evaluation_claims = [
            (task.version, group.index) for task in tasks if task.kind != TaskKind.TASK_KIND_TRAIN for group in task.groups
        ]

    async def _groups(self, task: Task) -> list[Group]:
        is_training = task.kind == TaskKind.TASK_KIND_TRAIN
        table = self._parts.training if is_training else self._parts.evaluation
        if table is None:
            raise DatasetError("the run has no held-out rows, and a task asks for some; give data.eval and submit again")
        rows = [group.row for group in task.groups]
        prompts, texts, labels = await table.ids(rows), await table.texts(rows), await table.labels(rows)
        responses = await self._responses(table, rows, [len(ids) for ids in prompts])
        decoded = iter(await table.decode([response.ids for given in responses for response in given]))
        groups: list[Group] = []
        for of, ids, text, given, label in zip(task.groups, prompts, texts, responses, labels, strict=True):
            group = self._group(task, of, (ids, text), [(response, next(decoded)) for response in given])
            group.samples[0].undesirable = label is False
            groups.append(group)
        return groups

    async def _responses(self, table: PromptTable, rows: Sequence[int], prompt_tokens: Sequence[int]) -> list[Sequence[GivenResponse]]:
        """The responses of each row. Of a row with a label the second is that of another row, as far as it fits the context."""
        responses = await table.responses(rows)
        if not self._mismatches:
            return responses
        # In a thread, because each looks at several rows, which may have a megabyte of JSON.
        others = await table.responses(await in_run_thread(lambda: [table.other_row(row) for row in rows], "find other rows"))
        rooms = [table.context_length - tokens for tokens in prompt_tokens]
        return [[*own, other.cut(room)] for own, (other,), room in zip(responses, others, rooms, strict=True)]

    def _group(self, task: Task, of: GroupTask, prompt: tuple[Sequence[int], str], responses: Sequence[tuple[GivenResponse, str]]) -> Group:
        """The group of a row; `prompt` is token ids and text, and each response has its text."""
        group = group_header(self._run_id, task, of, prompt[1], self._presence.worker, ENGINE)
        group.prompt_ids = pack_ids(prompt[0])
        for n, (response, text) in enumerate(responses):
            sample = group.samples.add(
                sample_id=sample_id(of.index, n), n=n, token_ids=pack_ids(response.ids), finish_reason=FINISH_REASON_STOP, text=text
            )
            for start, end, trained in response.spans:
                sample.spans.add(start=start, end=end, version=task.version, trainable=trained)
        return group

"""`TaskSampler`: from a task to its sampled groups. A run has samples of one turn, or episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from gradbus import crash_points
from gradbus.algorithms import algorithm_of
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.telemetry import under
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import Task, TaskKind
from gradbus_rollout.engines.base import Engine
from gradbus_rollout.run_faults import fatal_for_run
from gradbus_rollout.tasks.generation_traces import TaskTimes, first_trace
from gradbus_rollout.tasks.prompts import PromptTable
from gradbus_rollout.tasks.samples import group_header, group_message, prompt_group


@dataclass(frozen=True, slots=True)
class PromptTables:
    """The rows of a run."""

    training: PromptTable
    evaluation: PromptTable | None

    def of(self, task: Task) -> PromptTable:
        """The rows that the task's groups are from."""
        if task.kind == TaskKind.TASK_KIND_EVALUATION and self.evaluation is not None:
            return self.evaluation
        return self.training


class TaskSampler(Protocol):
    """Samples the groups of a task."""

    async def sample(self, task: Task, times: TaskTimes) -> Sequence[Group]:
        """The sampled groups, in the order of the task's; `times` is told when they were sampled."""
        ...


@dataclass(frozen=True, slots=True)
class GroupHeaders:
    """Makes a group without its tokens."""

    run_id: str
    presence: WorkerPresence
    engine: Engine

    async def of(self, task: Task, table: PromptTable) -> list[Group]:
        """Of each group of the task: what it is, and which worker makes it with which engine."""
        texts = await table.texts([group.row for group in task.groups])
        worker, engine = self.presence.worker, self.engine.name
        return [group_header(self.run_id, task, group, text, worker, engine) for group, text in zip(task.groups, texts, strict=True)]


class SingleTurnSampler:
    """A sample is one response of the policy."""

    def __init__(self, record: RunRecord, engine: Engine, tables: PromptTables, presence: WorkerPresence) -> None:
        self._spec = record.spec
        self._engine = engine
        self._tables = tables
        self._presence = presence
        self._headers = GroupHeaders(record.run_id, presence, engine)

    async def sample(self, task: Task, times: TaskTimes) -> list[Group]:
        """See `TaskSampler.sample`."""
        table, spec = self._tables.of(task), self._spec
        with fatal_for_run(self._presence):
            ids = await table.ids([group.row for group in task.groups])
        shape = spec.seed, spec.rollout.group_size, algorithm_of(spec).greedy_samples
        prompts = [prompt_group(task, group, of_prompt, *shape) for group, of_prompt in zip(task.groups, ids, strict=True)]
        with under(first_trace(task)):
            sampling = asyncio.ensure_future(self._engine.generate(prompts))
        await asyncio.sleep(0)
        crash_points.reached("mid-decode")
        completions = await sampling
        times.mark_sampled(completions)
        with fatal_for_run(self._presence):
            headers = await self._headers.of(task, table)
            # The texts of all samples are decoded in one call.
            texts = iter(await table.decode([sample.token_ids for completion in completions for sample in completion.completions]))
            return [
                group_message(header, prompt, completion, list(islice(texts, len(completion.completions))))
                for header, prompt, completion in zip(headers, prompts, completions, strict=True)
            ]

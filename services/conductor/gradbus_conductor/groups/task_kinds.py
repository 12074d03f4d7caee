"""Training and evaluation share one pipeline; the few points in which their tasks differ are here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gradbus.control.runs import WorkerPresence
from gradbus.experience import GroupStore
from gradbus.spec import RewardSpec
from gradbus.telemetry import Attributes, evaluation_trace, group_trace
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import TaskKind


class TaskSet(Protocol):
    """The tasks of one pipeline: of a run's training, or of the evaluation of one version."""

    @property
    def kind(self) -> TaskKind:
        """As the tasks name it."""
        ...

    @property
    def is_logged(self) -> bool:
        """Whether judged groups go into the experience log."""
        ...

    @property
    def version_files(self) -> Sequence[str]:
        """Digests of a version's files; only of held-out rows with given responses, whose loss is the version's."""
        ...

    @property
    def trace_attributes(self) -> Attributes:
        """Added to the root span of each group."""
        ...

    def trace(self, run_id: str, index: int) -> str:
        """Traceparent of a group's root span."""
        ...

    def claims(self, worker: WorkerPresence) -> Sequence[int]:
        """Indexes of the groups that a worker is sampling."""
        ...

    def turn(self, reward: RewardSpec, index: int, groups_per_step: int) -> int:
        """Whose turn of the run's scorers it is to judge a group."""
        ...

    async def get(self, store: GroupStore, indexes: Sequence[int]) -> dict[int, Group]:
        """Sampled groups in the buffer, by index."""
        ...

    async def discard(self, store: GroupStore, indexes: Sequence[int]) -> None:
        """Removes groups from the buffer, so that they are sampled again."""
        ...

    async def discard_unwanted(self, store: GroupStore, indexes: Sequence[int]) -> None:
        """Removes groups that a worker reports and the pipeline does not wait for."""
        ...


@dataclass(frozen=True, slots=True)
class TrainingTasks:
    """Groups whose judged samples go into the experience log."""

    kind: TaskKind = TaskKind.TASK_KIND_TRAIN
    is_logged: bool = True
    version_files: Sequence[str] = ()

    @property
    def trace_attributes(self) -> Attributes:  # noqa: D102
        return {}

    def trace(self, run_id: str, index: int) -> str:  # noqa: D102
        return group_trace(run_id, index)

    def claims(self, worker: WorkerPresence) -> Sequence[int]:  # noqa: D102
        return worker.claims

    def turn(self, reward: RewardSpec, index: int, groups_per_step: int) -> int:  # noqa: ARG002, D102
        return reward.turn_of_group(index)

    async def get(self, store: GroupStore, indexes: Sequence[int]) -> dict[int, Group]:  # noqa: D102
        return await store.get(indexes)

    async def discard(self, store: GroupStore, indexes: Sequence[int]) -> None:  # noqa: D102
        await store.discard(indexes)

    async def discard_unwanted(self, store: GroupStore, indexes: Sequence[int]) -> None:
        """Late duplicates of groups that are in the log."""
        await store.discard(indexes)


@dataclass(frozen=True, slots=True)
class EvaluationTasks:
    """Held-out rows, completed by one version; an index is a row."""

    version: int
    version_files: Sequence[str] = ()
    kind: TaskKind = TaskKind.TASK_KIND_EVALUATION
    is_logged: bool = False

    @property
    def trace_attributes(self) -> Attributes:  # noqa: D102
        return {"gradbus.evaluation.version": self.version}

    def trace(self, run_id: str, index: int) -> str:  # noqa: D102
        return evaluation_trace(run_id, self.version, index)

    def claims(self, worker: WorkerPresence) -> Sequence[int]:  # noqa: D102
        return [index for version, index in worker.evaluation_claims if version == self.version]

    def turn(self, reward: RewardSpec, index: int, groups_per_step: int) -> int:  # noqa: ARG002, D102
        return reward.turn_of_version(self.version, groups_per_step)

    async def get(self, store: GroupStore, indexes: Sequence[int]) -> dict[int, Group]:  # noqa: D102
        return await store.get_evaluation(self.version, indexes)

    async def discard(self, store: GroupStore, indexes: Sequence[int]) -> None:  # noqa: D102
        await store.discard_evaluation(self.version, indexes)

    async def discard_unwanted(self, store: GroupStore, indexes: Sequence[int]) -> None:
        """Nothing: judged rows stay until the result is stored, so that the next conductor finds them."""


TRAINING: Final = TrainingTasks()

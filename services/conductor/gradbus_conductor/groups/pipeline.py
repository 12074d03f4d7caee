"""Groups on their way: dispatched, sampled into the buffer, judged. Training and each evaluation have one of these.

Nothing here is remembered by messages alone: a lost one shows as an overdue group, and an overdue group is looked
for in the buffer before it is dispatched again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass

from gradbus.bus import TaskQueue
from gradbus.control.runs import RunRecord, WorkerPresence
from gradbus.experience import GroupStore
from gradbus.telemetry import Metrics, get_logger
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.dispatch import Dispatcher
from gradbus_conductor.groups.scoring import Scoring, oldest_version
from gradbus_conductor.groups.traces import GroupTraces

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SamplingWork:
    """What is sampled."""

    record: RunRecord
    items: Sequence[str]
    """Dataset rows as JSON."""
    row: Callable[[int], int]
    """Index to row."""
    evaluated: int | None = None
    """The version under evaluation; None for training."""


class Sampling:
    """Dispatches groups, finds them in the buffer, and has them judged."""

    def __init__(self, clients: Clients, work: SamplingWork, queue: TaskQueue, wake: asyncio.Event) -> None:
        run_id = work.record.run_id
        self._work = work
        self._wake = wake
        self._store = GroupStore(clients.buffer, run_id)
        self.traces = GroupTraces(run_id, clients.trace_groups, work.evaluated)
        self._dispatcher = Dispatcher(queue, run_id, self.traces, work.evaluated)
        self._scoring = Scoring(clients, run_id, work.record.spec, self.traces, self._judged)
        self._signalled: set[int] = set()
        self._taken: dict[int, int] = {}
        self.judged: dict[int, LogEntry] = {}
        """Judged groups by index, until `settled`."""
        self.tokens = 0
        """Response tokens seen."""

    @property
    def scoring_seconds(self) -> float:
        """How long the scorer had work."""
        return self._scoring.state.busy.total()

    def show(self, numbers: Metrics, outstanding: Callable[[], Sized]) -> None:
        """From now on `numbers` tell how many groups wait, and for what. They are counted when they are read."""
        state = self._scoring.state
        stages: dict[str, Callable[[], float]] = {
            "sampling": lambda: max(0, len(outstanding()) - len(self._taken)),
            "judging": lambda: max(0, len(self._taken) - len(self.judged)),
            "admission": lambda: len(self.judged),
        }
        numbers.replace("gradbus.groups.waiting", "gradbus.stage", stages)
        numbers.set("gradbus.groups.unscored", lambda: len(state.failing))
        numbers.replace("gradbus.run.time", "gradbus.phase", {"score": state.scored.total, "reference": state.referenced.total})

    async def dispatch(self, groups: Mapping[int, int], workers: int) -> None:
        """Dispatches groups: index to version."""
        await self._dispatcher.send([(index, version, self._work.row(index)) for index, version in groups.items()], workers)

    def signalled(self, indexes: Iterable[int]) -> None:
        """A worker says that these lie in the buffer."""
        self._signalled.update(indexes)
        self._wake.set()

    async def collect(self, wanted: Mapping[int, int]) -> None:
        """Takes what was signalled and is wanted out of the buffer and has it judged."""
        news = [index for index in self._signalled if index in wanted and index not in self._taken]
        strays = [index for index in self._signalled if index not in wanted]
        self._signalled.clear()
        await self._take(news)
        if strays and self._work.evaluated is None:
            await self._store.discard(strays)

    async def repair(self, wanted: Mapping[int, int], workers: Sequence[WorkerPresence]) -> None:
        """Looks for overdue groups in the buffer, then dispatches again what is neither there nor claimed."""
        open_groups = {index: version for index, version in wanted.items() if index not in self._taken}
        overdue = self._dispatcher.overdue(open_groups, workers)
        if not overdue:
            return
        found = await self._take(overdue)
        lost = [index for index in overdue if index not in found]
        await self._dispatcher.send_again(lost, open_groups, {index: self._work.row(index) for index in lost}, len(workers))

    def oldest_version(self, index: int) -> int:
        """The oldest policy version among the trainable spans of a group that was taken out of the buffer."""
        return self._taken[index]

    def overdue(self, wanted: Iterable[int], seconds: float) -> list[int]:
        """Those of `wanted` that were dispatched longer ago than `seconds`."""
        return [index for index in wanted if self._dispatcher.age(index) > seconds]

    def failing(self, seconds: float) -> str:
        """Why judging fails, if some group has waited longer than `seconds` for it; else empty."""
        reasons = self._scoring.state.failing
        return next(iter(reasons.values()), "") if self.overdue(reasons, seconds) else ""

    def excuse(self, indexes: Iterable[int]) -> None:
        """Nobody is late with these, because the run stands still."""
        self._dispatcher.excuse(indexes)

    def settled(self, indexes: Collection[int]) -> None:
        """These are in the log (or counted): forget them."""
        for index in indexes:
            self.judged.pop(index, None)
            self._taken.pop(index, None)
        self._scoring.forget(indexes)
        self._dispatcher.settled(indexes)
        self.traces.forget(indexes)

    async def close(self) -> None:
        """Stops scoring."""
        await self._scoring.close()

    async def _take(self, indexes: Sequence[int]) -> set[int]:
        if not indexes:
            return set()
        evaluated = self._work.evaluated
        found = await (self._store.get(indexes) if evaluated is None else self._store.get_evaluation(evaluated, indexes))
        if strangers := [index for index, group in found.items() if not self._is_ours(index, group)]:
            _log.warning("foreign_group_removed", run_id=self._work.record.run_id, indexes=strangers)
            await (self._store.discard(strangers) if evaluated is None else self._store.discard_evaluation(evaluated, strangers))
            found = {index: group for index, group in found.items() if index not in strangers}
        self._taken.update((index, _oldest_version(group)) for index, group in found.items())
        self.tokens += sum(len(sample.token_ids) // 4 for group in found.values() for sample in group.samples)
        self.traces.found(found.values())
        self._scoring.submit((group, self._work.items[group.row]) for group in found.values())
        return set(found)

    def _is_ours(self, index: int, group: Group) -> bool:
        """What was asked for: a group of another row would be judged by the wrong answer."""
        return (group.run_id, group.index, group.row) == (self._work.record.run_id, index, self._work.row(index))

    def _judged(self, entry: LogEntry) -> None:
        self.judged[entry.index] = entry
        if self._work.evaluated is not None:
            self.traces.judged(entry)
        self._wake.set()


def _oldest_version(group: Group) -> int:
    return min((oldest_version(sample, group.version) for sample in group.samples), default=group.version)

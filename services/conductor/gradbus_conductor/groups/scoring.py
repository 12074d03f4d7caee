"""Scoring in the background: batches of groups, several calls at a time, and retries until every group is judged.

A call that is late is repeated in halves beside it, and the first answer counts: a scorer that hangs now and then delays a group by
little, and a sample on which it always hangs is soon alone in its call. Meanwhile the run's status names the failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from statistics import median

from gradbus.aio.tasks import cancel_and_wait
from gradbus.spec import RewardChange, RunSpec
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.judging import GroupJudge, ScoringState
from gradbus_conductor.groups.pending_group import PendingGroup
from gradbus_conductor.groups.task_kinds import TRAINING, TaskSet
from gradbus_conductor.groups.traces import GroupTraces

_log = get_logger(__name__)
_MAX_CALLS = 16
_MAX_GROUPS_PER_CALL = 128
_MAX_CHARACTERS_PER_CALL = 8 << 20
"""Every sample brings its row, which may have a megabyte. Beyond it a call has one group."""
_BACKOFF_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0)
_LATE_FACTOR = 4.0
"""A call is late after so many times the usual duration."""
_MIN_LATE_SECONDS = 0.2
_FIRST_LATE_SECONDS = 1.0
"""Before any call was answered."""
_START_SECONDS = 10.0
"""A scorer that has answered no call may still be starting, and the reward service waits so long for it: asking again helps nobody."""
_MAX_REPEATS = 8.0
_REPEATS_PER_ANSWER = 0.5
"""A scorer that becomes slow as a whole gets little more to do: every answer allows half a repeated call, up to `_MAX_REPEATS`."""


@dataclass(slots=True)
class _Call:
    batch: list[PendingGroup]
    is_repeat: bool
    timer: asyncio.TimerHandle | None = None
    """Fires when the call is late."""


class Scoring:
    """Scores groups in the background; `done` gets each group's log entry."""

    def __init__(
        self,
        clients: Clients,
        run_id: str,
        spec: RunSpec,
        traces: GroupTraces,
        done: Callable[[LogEntry], None],
        tasks: TaskSet = TRAINING,
    ) -> None:
        self._run_id = run_id
        self._done = done
        self._timeout = spec.reward.timeout_seconds
        self._repeats = _MAX_REPEATS
        self._waiting: dict[int, PendingGroup] = {}
        self._calls: dict[asyncio.Task[None], _Call] = {}
        self._batch_size = _MAX_GROUPS_PER_CALL
        self.state = ScoringState()
        self._first_calls: dict[str, float] = {}
        """When each scorer was first called, by its section."""
        self._judge = GroupJudge(clients, run_id, spec, traces, self.state, tasks)

    def change_scorer(self, change: RewardChange) -> None:
        """From a group on another scorer judges; none of its groups was submitted yet."""
        self._judge.scorers.change(change)

    def submit(self, groups: Iterable[tuple[Group, str]]) -> Sequence[PendingGroup]:
        """Takes sampled groups, each with its dataset row as JSON; returns them, read."""
        new = {group.index: PendingGroup(group, item) for group, item in groups}
        self.state.wanted.update(new)
        self._waiting.update(new)
        self._start_calls()
        return list(new.values())

    def forget(self, indexes: Iterable[int]) -> None:
        """Stops scoring groups that are no longer wanted."""
        for index in indexes:
            self.state.wanted.discard(index)
            self._waiting.pop(index, None)
            self.state.failing.pop(index, None)
        for task, call in self._calls.items():
            if task is not asyncio.current_task() and not any(pending.index in self.state.wanted for pending in call.batch):
                task.cancel()

    async def close(self) -> None:
        """Cancels the calls in flight; their groups are still in the buffer."""
        self.state.wanted.clear()
        self._waiting.clear()
        await cancel_and_wait(*self._calls)

    def _start_calls(self) -> None:
        # Every waiting group goes into one call, up to a bound; a slow scorer gets several calls side by side.
        while self._waiting and len(self._calls) < _MAX_CALLS:
            # Groups that failed before have calls of their own: the scorer may hang on one of them again.
            first, scorer_of = next(iter(self._waiting.values())), self._judge.scorers.of
            retried, scorer = first.attempts > 0, scorer_of(first.index)
            alike = (
                pending for pending in self._waiting.values() if (pending.attempts > 0) == retried and scorer_of(pending.index) is scorer
            )
            batch = _fitting(list(islice(alike, self._batch_size)))
            for pending in batch:
                del self._waiting[pending.index]
            self._start(batch)

    def _start(self, batch: list[PendingGroup], *, is_repeat: bool = False) -> None:
        for pending in batch:
            pending.calls += 1
        scorer = self._judge.scorers.of(batch[0].index)
        self._first_calls.setdefault(scorer.reward_json, time.monotonic())
        task = asyncio.create_task(self._process(batch), name="score")
        call = self._calls[task] = _Call(batch, is_repeat)
        task.add_done_callback(self._on_call_done)
        if not scorer.is_users:
            return  # a grader's processes are the run's own: what hangs there is found and ended by the reward service
        late = _late_after(self.state.call_seconds[scorer.reward_json], sum(len(pending.unanswered()) for pending in batch))
        if late < self._timeout:
            call.timer = asyncio.get_running_loop().call_later(late, self._repeat, call)

    def _repeat(self, late: _Call) -> None:
        """Asks again about the groups of a late call, in two calls. The late call may still be the first to answer."""
        if self._may_be_starting(late):
            late.timer = asyncio.get_running_loop().call_later(_FIRST_LATE_SECONDS, self._repeat, late)
            return
        groups = [pending for pending in late.batch if pending.index in self.state.wanted and pending.entry is None]
        if late.is_repeat and len(groups) == 1:
            return
        half = -(-len(groups) // 2)
        for part in (groups[:half], groups[half:]):
            if part and len(self._calls) < _MAX_CALLS and self._repeats >= 1.0:
                self._repeats -= 1.0
                self._start(part, is_repeat=True)

    def _may_be_starting(self, call: _Call) -> bool:
        section = self._judge.scorers.of(call.batch[0].index).reward_json
        return section not in self.state.first_answers.scored and time.monotonic() - self._first_calls[section] < _START_SECONDS

    def _on_call_done(self, task: asyncio.Task[None]) -> None:
        if (timer := self._calls.pop(task).timer) is not None:
            timer.cancel()
        self._start_calls()

    async def _process(self, batch: list[PendingGroup]) -> None:
        try:
            with self.state.busy:
                judged = await self._judge.judge(batch)
        except Exception as error:  # noqa: BLE001 - the boundary of one call: logged whole, its groups are submitted again
            _log.exception("scoring_failed", run_id=self._run_id, groups=len(batch))
            reason = f"a fault in scoring: {type(error).__name__}: {error}; see the conductor's log"
            self.state.fail(batch, reason)
            for pending in batch:
                self.state.fail_permanently(pending, reason)
            judged = self._judge.complete(batch)
        finally:
            for pending in batch:
                pending.calls -= 1
        if judged:
            self._repeats = min(_MAX_REPEATS, self._repeats + _REPEATS_PER_ANSWER)
        self._batch_size = _next_batch_size(self._batch_size, len(batch), any_judged=bool(judged))
        wanted = [pending for pending in batch if pending.index in self.state.wanted]
        self.forget(pending.index for pending in wanted if pending.index in judged)
        for pending in wanted:
            if (entry := judged.get(pending.index)) is not None:
                self._done(entry)
            elif pending.calls == 0:
                self._retry_later(pending)

    def _retry_later(self, pending: PendingGroup) -> None:
        # Permanent failures count from their first one: the run is to end soon, even if its scorer was away before.
        failures = max(map(len, pending.permanent_failures.values()), default=0)
        delay = _BACKOFF_SECONDS[min(failures - 1 if failures else pending.attempts, len(_BACKOFF_SECONDS) - 1)]
        pending.attempts += 1

        def retry() -> None:
            if pending.index in self.state.wanted:
                self._waiting[pending.index] = pending
                self._start_calls()

        asyncio.get_running_loop().call_later(delay, retry)


def _fitting(groups: list[PendingGroup]) -> list[PendingGroup]:
    """The first of `groups` that fit into one call, at least one."""
    totals = accumulate(pending.characters for pending in groups)
    return groups[: max(1, sum(total <= _MAX_CHARACTERS_PER_CALL for total in totals))]


def _late_after(answered: Iterable[tuple[int, float]], samples: int) -> float:
    """Seconds after which a call with so many samples is late, from the (samples, seconds) of answered calls."""
    sizes, seconds = [size for size, _ in answered], [duration for _, duration in answered]
    if not seconds:
        return _FIRST_LATE_SECONDS
    return max(_MIN_LATE_SECONDS, _LATE_FACTOR * median(seconds) * max(1.0, samples / median(sizes)))


def _next_batch_size(size: int, groups: int, *, any_judged: bool) -> int:
    """Groups in the next call. A call of `groups` that judged none may exceed a message size or a deadline, so the next is smaller."""
    if any_judged:
        return min(_MAX_GROUPS_PER_CALL, size + 1) if groups >= size else size
    return max(1, min(size, groups // 2)) if groups > 1 else size

"""Scoring in the background: batches of groups, several calls at a time, and retries until every group is judged.

Meanwhile the run's status names the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice

from gradbus.aio.tasks import cancel_and_wait
from gradbus.spec import RunSpec
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import Group, LogEntry
from gradbus_conductor.clients import Clients
from gradbus_conductor.groups.judging import GroupJudge, PendingGroup, ScoringState
from gradbus_conductor.groups.traces import GroupTraces

_log = get_logger(__name__)
_MAX_CALLS = 16
_MAX_GROUPS_PER_CALL = 128
_BACKOFF_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0)


class Scoring:
    """Scores groups in the background; `done` gets each group's log entry."""

    def __init__(self, clients: Clients, run_id: str, spec: RunSpec, traces: GroupTraces, done: Callable[[LogEntry], None]) -> None:
        self._run_id = run_id
        self._done = done
        self._waiting: dict[int, PendingGroup] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._batch_size = _MAX_GROUPS_PER_CALL
        self.state = ScoringState()
        self._judge = GroupJudge(clients, run_id, spec, traces, self.state)

    def submit(self, groups: Iterable[tuple[Group, str]]) -> None:
        """Takes sampled groups, each with its dataset row as JSON."""
        new = {group.index: PendingGroup(group, item) for group, item in groups}
        self.state.wanted.update(new)
        self._waiting.update(new)
        self._start_calls()

    def forget(self, indexes: Iterable[int]) -> None:
        """Stops scoring groups that are no longer wanted."""
        for index in indexes:
            self.state.wanted.discard(index)
            self._waiting.pop(index, None)
            self.state.failing.pop(index, None)

    async def close(self) -> None:
        """Cancels the calls in flight; their groups are still in the buffer."""
        self.state.wanted.clear()
        self._waiting.clear()
        await asyncio.gather(*(cancel_and_wait(call) for call in list(self._calls)))

    def _start_calls(self) -> None:
        # Every waiting group goes into one call, up to a bound; a slow scorer gets several calls side by side.
        while self._waiting and len(self._calls) < _MAX_CALLS:
            batch = [self._waiting.pop(index) for index in list(islice(self._waiting, self._batch_size))]
            call = asyncio.create_task(self._process(batch), name="score")
            self._calls.add(call)
            call.add_done_callback(self._on_call_done)

    def _on_call_done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._start_calls()

    async def _process(self, batch: list[PendingGroup]) -> None:
        try:
            with self.state.busy:
                judged = await self._judge.judge(batch)
        except Exception as error:  # noqa: BLE001 - the boundary of one call: logged whole, its groups are submitted again
            _log.exception("scoring_failed", run_id=self._run_id, groups=len(batch))
            self.state.fail(batch, f"a fault in scoring: {type(error).__name__}: {error}; see the conductor's log")
            judged = self._judge.complete(batch)
        self._batch_size = _next_batch_size(self._batch_size, len(batch), any_judged=bool(judged))
        for pending in batch:
            if pending.index not in self.state.wanted:
                continue
            if (entry := judged.get(pending.index)) is not None:
                self.forget([pending.index])
                self._done(entry)
            else:
                self._retry_later(pending)

    def _retry_later(self, pending: PendingGroup) -> None:
        delay = _BACKOFF_SECONDS[min(pending.attempts, len(_BACKOFF_SECONDS) - 1)]
        pending.attempts += 1

        def retry() -> None:
            if pending.index in self.state.wanted:
                self._waiting[pending.index] = pending
                self._start_calls()

        asyncio.get_running_loop().call_later(delay, retry)


def _next_batch_size(size: int, groups: int, *, any_judged: bool) -> int:
    """Groups in the next call. A call of `groups` that judged none may exceed a message size or a deadline, so the next is smaller."""
    if any_judged:
        return min(_MAX_GROUPS_PER_CALL, size + 1) if groups >= size else size
    return max(1, min(size, groups // 2)) if groups > 1 else size

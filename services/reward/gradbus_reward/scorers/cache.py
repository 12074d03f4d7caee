"""The open scorers. Each run has its own, so that no run waits for the slots, connections, threads or processes of another."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from gradbus.sandbox.budget import ProcessBudget
from gradbus.spec import RewardSpec
from gradbus.telemetry import CardinalityLimit, get_logger
from gradbus_reward.graders.base import Capacity
from gradbus_reward.sandbox.programs import Sandboxes
from gradbus_reward.scorers.base import Scorer
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer
from gradbus_reward.scorers.kept import KeptAnswers
from gradbus_reward.scorers.telemetry import CallMetrics, scorer_name

_log = get_logger(__name__)
DEFAULT_TIMEOUT_SECONDS: Final = 10.0
_KEPT_SECONDS: Final = 5.0
"""After its last call a scorer is kept at least so long, whatever the number: a grader's process takes long to start, and a scorer knows
which samples stopped it."""
_NAMED_IN_METRICS: Final = 16
"""Scorers that metrics tell apart; users choose their addresses."""


@dataclass(slots=True)
class OpenScorer:
    """A scorer with what its calls share."""

    scorer: Scorer
    timeout_seconds: float
    slots: asyncio.Semaphore
    """Bounds concurrent calls."""
    metrics: CallMetrics
    users: int = field(default=0)
    """Calls that hold it, running or in the queue."""
    last_used: float = field(default_factory=time.monotonic)


class ScorerCache:
    """Keeps up to `size` scorers open; beyond it, closes those that no call needed of late, the least recently used first."""

    def __init__(self, settings: ScorerSettings, *, size: int, concurrency: int) -> None:
        """`concurrency`: calls of one run's scorer at once."""
        self._settings = settings
        self._size = size
        self._concurrency = concurrency
        self._answers = KeptAnswers()
        self._capacity = Capacity(ProcessBudget(settings.max_processes), Sandboxes(settings.max_sandboxes))
        self._open: OrderedDict[tuple[str, str], OpenScorer] = OrderedDict()
        """By run and `[reward]` section."""
        self._closing: set[asyncio.Task[None]] = set()
        self._metric_names = CardinalityLimit(_NAMED_IN_METRICS)

    @asynccontextmanager
    async def use(self, run_id: str, reward_json: str) -> AsyncIterator[OpenScorer]:
        """The scorer of a run and its `[reward]` section, open at least until the block ends."""
        key = run_id, reward_json
        if key not in self._open:
            self._open[key] = self._create(run_id, reward_json)
        entry = self._open[key]
        self._open.move_to_end(key)
        entry.users += 1
        entry.metrics.add_in_flight(1)
        try:
            self._close_surplus()
            yield entry
        finally:
            entry.users -= 1
            entry.last_used = time.monotonic()
            entry.metrics.add_in_flight(-1)

    async def close_idle(self, seconds: float) -> bool:
        """Closes scorers that no call has held for so long: their run has ended, is paused, or takes long steps.

        Returns whether there were any.
        """
        idle = self._idle(seconds)
        self._close(idle, "idle")
        await self._wait_closed()
        return bool(idle)

    async def close(self) -> None:
        """Closes all scorers."""
        self._close(list(self._open), "the service ends")
        await self._wait_closed()

    def _create(self, run_id: str, reward_json: str) -> OpenScorer:
        scorer = create_scorer(reward_json, self._settings, self._capacity, run_id, self._answers)
        metrics = CallMetrics(self._metric_names(scorer_name(reward_json)))
        return OpenScorer(scorer, _timeout_seconds(reward_json), asyncio.Semaphore(self._concurrency), metrics)

    def _close_surplus(self) -> None:
        surplus = max(0, len(self._open) - self._size)
        self._close(self._idle(_KEPT_SECONDS)[:surplus], "least recently used")

    def _idle(self, seconds: float) -> list[tuple[str, str]]:
        before = time.monotonic() - seconds
        return [key for key, entry in self._open.items() if entry.users == 0 and entry.last_used < before]

    def _close(self, keys: Sequence[tuple[str, str]], reason: str) -> None:
        """Closes in tasks: a call neither waits for the processes of other runs, nor leaves them behind if it is cancelled."""
        for key in keys:
            task = asyncio.create_task(_ended(key[0], self._open.pop(key).scorer, reason), name="close scorer")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _wait_closed(self) -> None:
        if self._closing:
            await asyncio.wait(self._closing)


async def _ended(run_id: str, scorer: Scorer, reason: str) -> None:
    await scorer.close()
    _log.info("scorer_closed", run_id=run_id, reason=reason)


def _timeout_seconds(reward_json: str) -> float:
    try:
        return RewardSpec.model_validate_json(reward_json).timeout_seconds
    except ValidationError:
        return DEFAULT_TIMEOUT_SECONDS  # an invalid section has a RefusingScorer, which returns at once

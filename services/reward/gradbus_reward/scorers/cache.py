"""The open scorers, one per `[reward]` section, shared by concurrent calls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from gradbus.spec import RewardSpec
from gradbus.telemetry import CardinalityLimit, get_logger
from gradbus_reward.scorers.base import Scorer
from gradbus_reward.scorers.factory import ScorerSettings, create_scorer
from gradbus_reward.scorers.telemetry import CallMetrics, scorer_name

_log = get_logger(__name__)
DEFAULT_TIMEOUT_SECONDS: Final = 10.0
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


class ScorerCache:
    """Keeps up to `size` scorers open; beyond it, closes those that no call holds, the least recently used first."""

    def __init__(self, settings: ScorerSettings, *, size: int, concurrency: int) -> None:
        """`concurrency`: calls of one scorer at once."""
        self._settings = settings
        self._size = size
        self._concurrency = concurrency
        self._open: OrderedDict[str, OpenScorer] = OrderedDict()
        self._metric_names = CardinalityLimit(_NAMED_IN_METRICS)

    @asynccontextmanager
    async def use(self, reward_json: str) -> AsyncIterator[OpenScorer]:
        """The scorer of a `[reward]` section, open at least until the block ends."""
        if reward_json not in self._open:
            self._open[reward_json] = self._create(reward_json)
        entry = self._open[reward_json]
        self._open.move_to_end(reward_json)
        entry.users += 1
        entry.metrics.add_in_flight(1)
        try:
            await self._close_surplus()
            yield entry
        finally:
            entry.users -= 1
            entry.metrics.add_in_flight(-1)

    async def close(self) -> None:
        """Closes all scorers."""
        while self._open:
            await self._open.popitem()[1].scorer.close()

    def _create(self, reward_json: str) -> OpenScorer:
        scorer, timeout_seconds = create_scorer(reward_json, self._settings), _timeout_seconds(reward_json)
        metrics = CallMetrics(self._metric_names(scorer_name(reward_json)))
        return OpenScorer(scorer, timeout_seconds, asyncio.Semaphore(self._concurrency), metrics)

    async def _close_surplus(self) -> None:
        idle = [key for key, entry in self._open.items() if entry.users == 0]
        # All are removed before the first is closed: while one closes, other calls may come for theirs.
        for entry in [self._open.pop(key) for key in idle[: max(0, len(self._open) - self._size)]]:
            await entry.scorer.close()
            _log.info("scorer_closed", reason="least recently used")


def _timeout_seconds(reward_json: str) -> float:
    try:
        return RewardSpec.model_validate_json(reward_json).timeout_seconds
    except ValidationError:
        return DEFAULT_TIMEOUT_SECONDS  # an invalid section has a RefusingScorer, which returns at once

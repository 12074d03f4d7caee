"""The interface between the reward service and the scorers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.results import failed_results


class Scorer(Protocol):
    """Scores samples."""

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample of the request, matched by id, within the deadline.

        Never raises for a failure of the scorer, which is an `error` result with a reason.
        """
        ...

    async def close(self) -> None:
        """Closes connections and processes."""
        ...


class RefusingScorer:
    """Takes the place of a scorer that cannot be created: every result is an `error` with the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:  # noqa: ARG002 - the Protocol's shape
        """`error` for every sample."""
        return failed_results(request.samples, self._reason, "grader")

    async def close(self) -> None:
        """Nothing to close."""

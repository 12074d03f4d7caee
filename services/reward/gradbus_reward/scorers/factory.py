"""The seam between the service and whatever judges samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from gradbus.errors import GraderError
from gradbus.spec import RewardSpec
from gradbus.v1 import reward_pb2
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.addresses import AddressPolicy
from gradbus_reward.scorers.grader import GraderScorer
from gradbus_reward.scorers.grpc import GrpcScorer
from gradbus_reward.scorers.http import HttpScorer
from gradbus_reward.scorers.results import all_failed


class Scorer(Protocol):
    """Judges samples."""

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """Exactly one answer per sample of the request, matched by id, within the deadline.

        Never raises for a scorer's failure: that is an `error` answer with a reason.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and processes."""
        ...


@dataclass(frozen=True, slots=True)
class ScorerSettings:
    """What the operator allows."""

    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    python_graders: bool = False
    """Whether users' Python runs here, each grader in processes of its own."""
    pool: PoolSettings = field(default_factory=PoolSettings)


class RefusingScorer:
    """Stands in for a scorer that cannot be made: every answer says why."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:  # noqa: ARG002 - the seam's shape
        """`error` for every sample."""
        return all_failed(request.samples, self._reason, "refused")

    async def close(self) -> None:
        """Nothing is held."""


def scorer_for(reward_json: str, settings: ScorerSettings) -> Scorer:
    """The scorer that a run's `[reward]` section asks for. Never raises: a section that is wrong gives a RefusingScorer."""
    try:
        spec = RewardSpec.model_validate_json(reward_json)
        if spec.grader is not None:
            return GraderScorer(spec.grader, python_graders=settings.python_graders, pool=settings.pool)
    except ValidationError as error:
        return RefusingScorer(f"the run's reward section is not valid: {error.errors(include_url=False)[0]['msg']}; submit the run again")
    except GraderError as error:
        return RefusingScorer(str(error))
    service = spec.service or ""
    if service.startswith("grpc://"):
        return GrpcScorer(service, settings.addresses)
    if service.startswith(("http://", "https://")):
        return HttpScorer(service, settings.addresses)
    return RefusingScorer("the run's reward section has neither a grader nor a service of a known kind; mend it and submit the run again")

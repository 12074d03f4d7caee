"""From a run's `[reward]` section to its scorer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from gradbus.errors import GraderError
from gradbus.spec import RewardSpec, ScorerSpec
from gradbus.user_services.addresses import AddressPolicy
from gradbus.user_services.keys import ServiceKeys
from gradbus_reward.graders.base import Capacity, Owner
from gradbus_reward.graders.judge import JudgeAccess
from gradbus_reward.protocols.table import protocol_of
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.base import RefusingScorer, Scorer
from gradbus_reward.scorers.grader import GraderLimits, GraderScorer
from gradbus_reward.scorers.grpc import GrpcScorer
from gradbus_reward.scorers.http import HttpScorer
from gradbus_reward.scorers.kept import KeptAnswers
from gradbus_reward.scorers.peer import PeerScorer
from gradbus_reward.scorers.shadow import ShadowedScorer


@dataclass(frozen=True, slots=True)
class ScorerSettings:
    """What the operator allows scorers."""

    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    python_graders: bool = False
    """Whether graders of type `python` and `code` run here, confined."""
    modules: Collection[str] = ()
    """Installed modules whose functions may be graders."""
    pool: PoolSettings = field(default_factory=PoolSettings)
    max_processes: int = 32
    """Grader processes of all runs together."""
    service_keys: ServiceKeys = field(default_factory=ServiceKeys)
    max_sandboxes: int = 4
    """Programs of all runs' code graders at once."""


def create_scorer(
    reward_json: str, settings: ScorerSettings, capacity: Capacity, run_id: str = "", answers: KeptAnswers | None = None
) -> Scorer:
    """The scorer that a run's `[reward]` section names. Never raises: an invalid section gives a RefusingScorer.

    `answers`: those of the scorers that keep them; None: there are none yet.
    """
    answers = answers or KeptAnswers()
    try:
        spec = RewardSpec.model_validate_json(reward_json)
        owner = Owner(run_id, timeout_seconds=spec.timeout_seconds)
        scorer = answers.kept_of(spec, _scorer(spec, settings, capacity, owner))
        shadows = {
            name: answers.kept_of(shadow, _scorer(shadow, settings, capacity, replace(owner, path=f"reward.shadow.{name}")))
            for name, shadow in spec.shadow.items()
        }
    except ValidationError as error:
        return RefusingScorer(f"the run's reward section is not valid: {error.errors(include_url=False)[0]['msg']}; submit the run again")
    return ShadowedScorer(scorer, shadows) if shadows else scorer


def _scorer(spec: ScorerSpec, settings: ScorerSettings, capacity: Capacity, owner: Owner) -> Scorer:
    if spec.grader is None:
        return _service(spec, settings)
    judges = JudgeAccess(settings.addresses, settings.service_keys)
    limits = GraderLimits(settings.python_graders, settings.modules, settings.pool, judges)
    try:
        return GraderScorer(spec.grader, limits, capacity, owner)
    except GraderError as error:
        return RefusingScorer(str(error))


def _service(spec: ScorerSpec, settings: ScorerSettings) -> Scorer:
    service = spec.service or ""
    if peer := protocol_of(spec):
        protocol, url = peer
        return PeerScorer(protocol, url, settings.addresses, settings.service_keys.headers(url))
    if service.startswith("grpc://"):
        return GrpcScorer(service, settings.addresses)
    if service.startswith(("http://", "https://")):
        return HttpScorer(service, settings.addresses)
    return RefusingScorer("the run's reward section has neither a grader nor a service of a known kind; fix it and submit the run again")

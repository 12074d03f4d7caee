"""Settings of the reward service."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field

from gradbus.process import ProcessSettings
from gradbus.spec import split_service
from gradbus.user_services.addresses import AddressPolicy
from gradbus.user_services.keys import KeysByOrigin, ServiceKeys
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.factory import ScorerSettings


class RewardSettings(ProcessSettings):
    """Settings of the reward service: what the operator allows, and how much runs at once."""

    python_graders: bool = Field(False, description="Run graders of type `python` and `code` here, confined.")
    allow_loopback: bool = Field(False, description="Whether scorer URLs may lead to this machine.")
    allowed_hosts: tuple[str, ...] = Field((), description='Hosts that scorer URLs may lead to, as a JSON list: ["scorer", "*.svc"].')
    reward_service: str = Field("", description="The operator's scorer for every run: allowed, and resolved at the start.")
    grader_processes: int = Field(2, ge=1, description="Processes of one run's Python grader.")
    max_grader_processes: int = Field(32, ge=1, description="Processes of all runs' Python graders; at the limit, starts wait.")
    reward_modules: tuple[str, ...] = Field((), description='Installed modules whose functions may be graders, as JSON: ["trl.rewards"].')
    service_keys: KeysByOrigin = Field(
        {}, description='Keys by origin, as JSON: {"http://127.0.0.1:8000": "sk-..."}; a host alone is https on port 443.'
    )
    max_sandboxes: int = Field(4, ge=1, description="Programs of all runs' code graders at once; others wait.")
    allow_unisolated_network: bool = Field(False, description="Run Python graders even where their network cannot be taken away.")
    scorers: int = Field(8, ge=1, description="Scorers kept open; beyond it, those unused for 5 s are closed.")
    calls_per_scorer: int = Field(32, ge=1, description="Concurrent calls of one run's scorer; further calls wait.")

    @property
    def addresses(self) -> AddressPolicy:
        """Hosts that scorer URLs may lead to, including the operator's scorer."""
        operator_host = urlsplit(split_service(self.reward_service)[1]).hostname
        return AddressPolicy((*self.allowed_hosts, *((operator_host,) if operator_host else ())), self.allow_loopback)

    @property
    def scorer(self) -> ScorerSettings:
        """Settings of every scorer."""
        return ScorerSettings(
            addresses=self.addresses,
            python_graders=self.python_graders,
            modules=self.reward_modules,
            pool=PoolSettings(self.grader_processes, self.allow_unisolated_network),
            max_processes=self.max_grader_processes,
            max_sandboxes=self.max_sandboxes,
            service_keys=ServiceKeys.of(self.service_keys),
        )

"""Settings of the reward service."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field

from gradbus.process import ProcessSettings
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.addresses import AddressPolicy
from gradbus_reward.scorers.factory import ScorerSettings


class RewardSettings(ProcessSettings):
    """What the operator allows, and how much runs at once."""

    python_graders: bool = Field(False, description="Run users' Python graders here, in processes of their own.")
    allow_loopback: bool = Field(False, description="Scorer URLs may lead to this machine.")
    allowed_hosts: tuple[str, ...] = Field((), description='Hosts that scorer URLs may lead to, as a JSON list: ["scorer", "*.svc"].')
    reward_service: str = Field("", description="Scorer that the operator has chosen for every run: allowed, and looked up at the start.")
    grader_processes: int = Field(2, ge=1, description="Processes of one grader.")
    allow_unisolated_network: bool = Field(False, description="Run graders even where their network cannot be taken away.")
    scorers: int = Field(8, ge=1, description="Scorers kept at once; one that is idle makes room.")
    calls_per_scorer: int = Field(32, ge=1, description="Calls of one scorer at once; more wait.")

    @property
    def addresses(self) -> AddressPolicy:
        """Hosts that scorer URLs may lead to, the operator's own scorer among them."""
        chosen = urlsplit(self.reward_service).hostname
        return AddressPolicy((*self.allowed_hosts, *((chosen,) if chosen else ())), self.allow_loopback)

    @property
    def scorer(self) -> ScorerSettings:
        """What scorers are made with."""
        return ScorerSettings(
            addresses=self.addresses,
            python_graders=self.python_graders,
            pool=PoolSettings(self.grader_processes, self.allow_unisolated_network),
        )

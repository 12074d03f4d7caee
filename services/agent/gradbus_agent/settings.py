"""Settings of the agent service."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pydantic import Field

from gradbus.process import ProcessSettings
from gradbus.process.settings import Folder
from gradbus.tls import Certificate, read_certificate
from gradbus.user_services.addresses import AGENT, AddressPolicy
from gradbus_agent.spawn import AgentCommand


class AgentSettings(ProcessSettings):
    """Settings of the agent service: its HTTP address, and the agents that it may call."""

    http_listen: str = Field("127.0.0.1:0", description="host:port on which agents reach it over HTTP; `listen` is for rollout workers.")
    public_url: str = Field("", description="http(s)://host:port by which agents reach it. Empty: by the Host that a claim names.")
    https_dir: Folder = Field(None, description="Folder of tls.crt and tls.key: agents then reach it over HTTPS alone.")
    api_keys_file: Path = Field(Path("/etc/gradbus/api-keys.json"), description="Records of the gateway's API keys, by which agents claim.")
    allow_loopback: bool = Field(False, description="Whether addresses of agents may lead to this machine.")
    allowed_hosts: tuple[str, ...] = Field((), description='Hosts that agents may be at, as a JSON list: ["agents", "*.svc"].')
    agent_commands: dict[str, AgentCommand] = Field(
        default_factory=dict, description='Agents that are started here, by name, as JSON: {"solver": {"command": ["/opt/x/agent"]}}.'
    )
    max_agent_processes: int = Field(16, ge=1, description="Commands of all runs' agents at once; beyond it episodes wait.")
    session_seconds: float = Field(
        900.0, gt=0.0, description="An episode whose rollout worker draws and said nothing for so long is closed."
    )

    @cached_property
    def https(self) -> Certificate | None:
        """The certificate shown to agents, if they reach it over HTTPS. Raises SettingsError when it cannot be used."""
        return read_certificate(self.https_dir) if self.https_dir else None

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates that it shows to services and to agents."""
        return (*super().certificates, *((self.https,) if self.https else ()))

    @property
    def addresses(self) -> AddressPolicy:
        """Where agents may be, to which episodes are posted."""
        return AddressPolicy(self.allowed_hosts, self.allow_loopback, AGENT)

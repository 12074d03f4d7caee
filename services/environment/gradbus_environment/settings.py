"""Settings of the environment service."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings
from gradbus.sandbox.budget import ProcessBudget
from gradbus.user_services.addresses import ENVIRONMENT, AddressPolicy
from gradbus_environment.worlds.factory import Capacity, WorldSettings
from gradbus_environment.worlds.mcp_stdio import McpCommand
from gradbus_environment.worlds.python import ChildSettings
from gradbus_environment.worlds.sandboxes import Sandboxes


class EnvironmentSettings(ProcessSettings):
    """Settings of the environment service: what the operator allows, and how much runs at once."""

    python_environments: bool = Field(False, description="Run users' Python environments here, in confined processes.")
    allow_loopback: bool = Field(False, description="Whether addresses of environments may lead to this machine.")
    allowed_hosts: tuple[str, ...] = Field((), description='Hosts that environments may be at, as a JSON list: ["world", "*.svc"].')
    children: int = Field(2, ge=1, description="Processes of one run's Python environment that its sessions share.")
    max_children: int = Field(32, ge=1, description="Processes of all runs' Python environments; at the limit, starts wait.")
    max_sandboxes: int = Field(4, ge=1, description="Commands of all runs' Python environments at once; others wait.")
    in_gvisor: bool = Field(False, description="Whether this process is in gVisor, as its pod's runtime class says: runs may demand it.")
    max_mcp_processes: int = Field(32, ge=1, description="Processes of all runs' MCP servers over stdio; beyond it episodes wait.")
    mcp_commands: dict[str, McpCommand] = Field(
        default_factory=dict, description='MCP servers over stdio by name, as JSON: {"files": {"command": ["/opt/x/server"], "paths": []}}.'
    )
    session_seconds: float = Field(900.0, gt=0.0, description="A session that had no call for so long is closed.")
    allow_unisolated_network: bool = Field(False, description="Run Python environments even where their network cannot be taken away.")

    @property
    def worlds(self) -> WorldSettings:
        """What environments may do."""
        return WorldSettings(
            addresses=AddressPolicy(self.allowed_hosts, self.allow_loopback, ENVIRONMENT),
            python=self.python_environments,
            children=ChildSettings(self.children, self.allow_unisolated_network),
            mcp_commands=self.mcp_commands,
        )

    @property
    def capacity(self) -> Capacity:
        """What the environments of all runs share, made anew at each call."""
        sandboxes = Sandboxes(self.max_sandboxes, in_gvisor=self.in_gvisor)
        return Capacity(ProcessBudget(self.max_children), ProcessBudget(self.max_mcp_processes), sandboxes)

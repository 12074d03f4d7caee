"""From a run's `[environment]` section to its world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from gradbus.sandbox.budget import ProcessBudget
from gradbus.spec.sections import EnvironmentSpec
from gradbus.user_services.addresses import AddressPolicy
from gradbus_environment.contract import EnvironmentRefusedError, World
from gradbus_environment.worlds.http import HttpWorld
from gradbus_environment.worlds.mcp import MCP_HTTP, MCP_STDIO, McpWorld
from gradbus_environment.worlds.mcp_http import McpOverHttp
from gradbus_environment.worlds.mcp_stdio import McpCommand, McpOverStdio
from gradbus_environment.worlds.nemo_gym.world import NEMO_GYM, NemoGymWorld
from gradbus_environment.worlds.openenv import OPENENV, OpenEnvWorld
from gradbus_environment.worlds.python import ChildSettings, PythonWorld
from gradbus_environment.worlds.sandboxes import Commands, Sandboxes


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """What the operator allows environments."""

    addresses: AddressPolicy = field(default_factory=AddressPolicy)
    python: bool = False
    """Whether users' Python runs here."""
    children: ChildSettings = field(default_factory=ChildSettings)
    mcp_commands: Mapping[str, McpCommand] = field(default_factory=dict)
    """By the name that submitters give."""


def read_section(environment_json: str) -> EnvironmentSpec:
    """The run's section. Raises EnvironmentRefusedError."""
    try:
        return EnvironmentSpec.model_validate_json(environment_json)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]["msg"]
        raise EnvironmentRefusedError(f"the run's environment section is not valid: {fault}; submit the run again") from error


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the environments of all runs share."""

    children: ProcessBudget
    mcp_processes: ProcessBudget
    sandboxes: Sandboxes


def create_world(section: EnvironmentSpec, settings: WorldSettings, capacity: Capacity) -> World:
    """The world of a section. Raises EnvironmentRefusedError."""
    if section.source is not None:
        if not settings.python:
            raise EnvironmentRefusedError(
                "python environments are off here; set GRADBUS_PYTHON_ENVIRONMENTS=true, or use a service of your own"
            )
        commands = Commands(capacity.sandboxes, section.sandbox) if section.sandbox else None
        return PythonWorld(section.source, settings.children, capacity.children, commands)
    if section.service is not None and section.service.startswith(("http://", "https://")):
        return HttpWorld(section.service, settings.addresses)
    if section.service is not None and section.service.startswith(OPENENV):
        return OpenEnvWorld(section.service, settings.addresses)
    if section.service is not None and section.service.startswith(NEMO_GYM):
        return NemoGymWorld(section.service, settings.addresses)
    if section.service is not None and section.service.startswith(MCP_HTTP):
        return McpWorld(McpOverHttp(section.service.removeprefix("mcp+"), settings.addresses))
    if section.service is not None and section.service.startswith(MCP_STDIO):
        name = section.service.removeprefix(MCP_STDIO)
        if name not in settings.mcp_commands:
            known = ", ".join(settings.mcp_commands) or "none"
            raise EnvironmentRefusedError(f"the operator names no MCP server {name[:80]!r} in GRADBUS_MCP_COMMANDS; known: {known}")
        return McpWorld(McpOverStdio(name, settings.mcp_commands[name], capacity.sandboxes, capacity.mcp_processes))
    raise EnvironmentRefusedError("the run's environment section has neither a source nor a service of a known kind; fix it")

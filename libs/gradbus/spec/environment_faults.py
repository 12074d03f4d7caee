"""An environment without a source, and sections that cannot be used beside one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gradbus.errors import Fault
from gradbus.spec.sections import EnvironmentSpec

_ADDRESSES = (
    "http://",
    "https://",
    "openenv+ws://",
    "openenv+wss://",
    "nemo-gym+http://",
    "nemo-gym+https://",
    "mcp+http://",
    "mcp+https://",
    "mcp+stdio://",
)
_WITHOUT_REWARDS = ("mcp+http://", "mcp+https://", "mcp+stdio://")


def environment_faults(kind: str, sections: Mapping[str, Any], deterministic: object) -> Iterator[Fault]:
    """Faults of a run of this kind that has an environment. `sections` are those that are valid by themselves."""
    environment = sections.get("environment")
    if environment is None:
        return
    if kind != "rl":
        yield Fault("environment", f"a run of kind {kind} samples nothing, so nobody acts in it", "[environment]", 'none, or kind = "rl"')
        return
    yield from _source_faults(environment)
    if environment.agent is not None and environment.journal is False and deterministic is True:
        message = "what an agent does is no function of the spec, and deterministic only given its record"
        yield Fault("environment.journal", message, "false", "true, or deterministic = false")
    reward = sections.get("reward")
    is_unscored = reward is not None and all(one is None for one in (reward.grader, reward.service, reward.model))
    if is_unscored and (environment.service or "").startswith(_WITHOUT_REWARDS):
        yield Fault("reward", "an MCP server gives no rewards", "none", "a [reward] with a grader, a service or a model")
    algorithm, rollout = sections.get("algorithm"), sections.get("rollout")
    if algorithm is not None and not algorithm.reads_rewards:
        message = f"advantage = {algorithm.advantage} reads no rewards, and an episode that failed is known by its missing reward"
        yield Fault("environment", message, "[environment]", "none, or an advantage that reads rewards, with teacher.coefficient")
    if rollout is not None and rollout.routing_replay:
        yield Fault("rollout.routing_replay", "experts are recorded by turn, and an episode has several", "true", "false")
    if environment.max_tokens is not None and rollout is not None and environment.max_tokens < rollout.max_new_tokens:
        message = "an episode has room for its first turn"
        allowed = f"rollout.max_new_tokens ({rollout.max_new_tokens}) or more"
        yield Fault("environment.max_tokens", message, json.dumps(environment.max_tokens), allowed)


def _source_faults(environment: EnvironmentSpec) -> Iterator[Fault]:
    given = [name for name in ("source", "file", "service", "agent") if getattr(environment, name) is not None]
    if len(given) != 1:
        shown = " and ".join(given) or "none of them"
        yield Fault("environment", "an environment has exactly one source", shown, "exactly one of `service`, `source` and `agent`")
    elif environment.sandbox is not None and environment.source is None and environment.file is None:
        message = "commands are executed for Python environments alone"
        yield Fault("environment.sandbox", message, environment.sandbox, "none, or an environment with a `source`")
    elif environment.file is not None:
        yield Fault("environment.file", "the command line replaces a file by its text", environment.file, "`source`")
    elif environment.service is not None and not _is_address(environment.service):
        yield Fault(
            "environment.service",
            "not the address of an environment",
            environment.service[:80],
            "http(s)://host:port/path, openenv+ws(s)://host:port, nemo-gym+http(s)://host:port, mcp+http(s)://host:port/path or mcp+stdio://name",
        )
    elif environment.agent not in (None, "pull") and not environment.agent.startswith(("http://", "https://", "spawn://")):
        allowed = "`pull`, http(s)://host:port/path or spawn://name"
        yield Fault("environment.agent", "not the address of an agent", environment.agent[:80], allowed)


def _is_address(service: str) -> bool:
    return service.startswith(_ADDRESSES) and service.isprintable() and " " not in service

"""Metrics of the agent service."""

from __future__ import annotations

from typing import Final, Literal

from gradbus.telemetry import PROCESS
from gradbus_agent.contract import Reply

_CALL: Final = "gradbus.agent.call"
_STATUS: Final = "gradbus.agent.status"


def count_reply(call: str, reply: Reply) -> None:
    """Counts a reply to a rollout worker."""
    PROCESS.count("gradbus.agent.calls", 1, {_CALL: call, _STATUS: "away" if reply.is_away else reply.status})


def count_turn(outcome: Literal["extend", "fork", "untrained", "replay", "withdrawn"]) -> None:
    """Counts a turn that an agent gets. A replay is one that it got before; a withdrawn one was drawn to no end, and nobody gets it."""
    PROCESS.count("gradbus.agent.turns", 1, {"gradbus.agent.outcome": outcome})


def count_refusal(status: int) -> None:
    """Counts a request that was refused."""
    PROCESS.count("gradbus.agent.refusals", 1, {"http.response.status_code": str(status)})


def count_episodes(change: int) -> None:
    """Counts episodes that begin (1) or end (-1)."""
    PROCESS.count("gradbus.agent.episodes", change)

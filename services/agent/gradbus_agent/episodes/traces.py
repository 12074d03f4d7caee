"""The spans of an agent's episode, in the trace of its group."""

from __future__ import annotations

import time

from gradbus.telemetry import TimedSpan, record
from gradbus_agent.contract import PolicyTurn
from gradbus_agent.episodes.turns import Opening


class EpisodeTrace:
    """What one attempt of an episode records: how long it waited for an agent, each request, and the whole."""

    def __init__(self, opening: Opening) -> None:
        self._parent = opening.traceparent
        self._of_episode: dict[str, str | int] = {
            "gradbus.run.id": opening.run_id,
            "gradbus.episode.id": opening.episode_id,
            "gradbus.attempt": opening.attempt,
        }
        self._offered = time.time_ns()
        self._claimed = 0

    def claimed(self) -> None:
        """An agent has it."""
        self._claimed = time.time_ns()
        self._record("wait_for_agent", self._offered, {})

    def answered(self, began: int, turn: PolicyTurn) -> None:
        """The policy has drawn for the request that came at `began`, in nanoseconds since 1970."""
        self._record("agent_request", began, {"gradbus.turn": turn.number, "gradbus.agent.outcome": turn.outcome})

    def over(self, turns: int, reason: str) -> None:
        """It is over, for a reason."""
        if self._claimed:
            self._record("agent_episode", self._claimed, {"gradbus.agent.turns": turns, "gradbus.reason": reason})

    def _record(self, name: str, began: int, attributes: dict[str, str | int]) -> None:
        if self._parent:
            record(TimedSpan(name, began, parent=self._parent, attributes=self._of_episode | attributes))

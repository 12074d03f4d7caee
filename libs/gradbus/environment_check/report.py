"""What a check found, as numbers and as sentences that say what to do."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from gradbus.environment_check.play import Played, Said
from gradbus.v1.environment_service_pb2 import ENVIRONMENT_STATUS_ERROR, StepResponse

MAX_SHOWN: Final = 500
"""Characters of a value in a report."""
_CUT: Final = re.compile(r"\n\[\d+ characters cut\]\n")
_FAILED: Final = re.compile(r'\{"error":"tool_failed","message":"(.*)"\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first answer that is not the same in both processes."""

    episode: int
    where: str
    field: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of one kind of call."""

    median: float
    longest: float


@dataclass(slots=True)
class Report:
    """The result of a check."""

    name: str = ""
    digest: str = ""
    declared: Literal["seeded", "recorded", "none"] = "none"
    """What it says of its determinism."""
    sandbox: str = ""
    """How the commands that it executes are confined."""
    tools: list[dict[str, str]] = field(default_factory=list)
    episodes: int = 0
    turns: int = 0
    calls: int = 0
    difference: Difference | None = None
    seconds: dict[str, Seconds] = field(default_factory=dict)
    longest_message: int = 0
    """Characters."""
    rewards: tuple[float, float] | None = None
    """The lowest and the highest reward of an episode."""
    problems: list[str] = field(default_factory=list)
    """Why a run in this environment would fail."""
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        found = "unknown" if not self.episodes else "differs" if self.difference else "seeded"
        return {
            "object": "environment_check",
            "usable": not self.problems,
            **asdict(self),
            "determinism": {"declared": self.declared, "found": found},
        }


def count(report: Report, played: Sequence[Played]) -> None:
    """Adds the numbers of the episodes of one process, and what is worth a note."""
    said = [one for episode in played for one in episode.said]
    report.episodes = len(played)
    report.turns = sum(len(episode.said) - 1 for episode in played)
    report.calls = sum(len(turn.assistant.calls) for episode in played for turn in episode.episode.turns[: len(episode.said) - 1])
    for kind, times in (("open", [one.seconds for one in said if one.where == "reset"]), ("step", _step_seconds(said))):
        if times:
            report.seconds[kind] = Seconds(statistics.median(times), max(times))
    contents = [message.content for one in said for message in one.answer.messages]
    report.longest_message = max(map(len, contents), default=0)
    rewards = [sum(_rewards(episode)) for episode in played if episode.has_reward]
    report.rewards = (min(rewards), max(rewards)) if rewards else None
    if cut := sum(1 for content in contents if _CUT.search(content)):
        report.notes.append(f"{cut} of {len(contents)} messages were longer than the service passes on and were cut; let tools say less")
    if failed := [found[1] for content in contents if (found := _FAILED.fullmatch(content))]:
        report.notes.append(f"tools raised {len(failed)} times, which the policy is told; the first: {shown(failed[0])}")


def first_difference(one: Played, other: Played) -> Difference | None:
    """The first answer that differs between two processes. An error is no answer: it is a problem of its own."""
    for first, second in zip(one.said, other.said, strict=False):
        if ENVIRONMENT_STATUS_ERROR in (first.answer.status, second.answer.status):
            return None
        before, after = first.fields, second.fields
        # The digest differs because something else does, unless the environment made it.
        for name in sorted(before.keys() | after.keys(), key=lambda name: (name == "state_digest", name)):
            if before.get(name) != after.get(name):
                return Difference(one.episode.number, first.where, name, shown(before.get(name)), shown(after.get(name)))
    return None


def shown(value: object) -> str:
    """A value in a report, cut to its first characters."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"


def _step_seconds(said: Sequence[Said]) -> list[float]:
    return [one.seconds for one in said if one.where != "reset"]


def _rewards(played: Played) -> Iterator[float]:
    for one in played.said:
        if isinstance(one.answer, StepResponse) and one.answer.HasField("reward"):
            yield one.answer.reward

"""What every way to grade has in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from gradbus.algorithms import MAX_REWARD
from gradbus.graders import ScoreResult
from gradbus.sandbox.bounds import MAX_COMPONENT
from gradbus.sandbox.budget import ProcessBudget
from gradbus.v1 import reward_pb2
from gradbus_reward.graders.verdicts import Verdicts
from gradbus_reward.sandbox.programs import Sandboxes

Sample = reward_pb2.ScoreSample
Parts = dict[str, ScoreResult]
"""Results of one sample, by part."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose grader it is."""

    run_id: str = ""
    path: str = "reward"
    """Of its section: the reward that trains, or a shadow."""
    timeout_seconds: float = 10.0
    """Of a whole call."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the graders of all runs share."""

    processes: ProcessBudget = field(default_factory=lambda: ProcessBudget(32))
    sandboxes: Sandboxes = field(default_factory=lambda: Sandboxes(4))
    verdicts: Verdicts = field(default_factory=Verdicts)


NOT_REACHED: Final = ScoreResult.error("no time was left for this sample; raise reward.timeout_seconds, or make the grader faster")


class PartGrader(Protocol):
    """Grades some of the parts of a run's grader."""

    @property
    def names(self) -> Sequence[str]:
        """Its parts."""
        ...

    async def grade(self, samples: Sequence[Sample], seconds: float) -> Sequence[Parts]:
        """The results of every sample, within about `seconds`.

        Raises SourceError for a part that does not load, and UserCodeError if it cannot be graded here, or for now.
        """
        ...

    async def close(self) -> None:
        """Ends threads and processes."""
        ...


def in_range(result: ScoreResult) -> ScoreResult:
    """The result, or `invalid`: to grade the sample again would give the same number."""
    if abs(result.reward) > MAX_REWARD:
        return ScoreResult.invalid(f"the grader's reward is {result.reward:g}; scale it to at most {MAX_REWARD:g}")
    for name, value in result.components.items():
        if abs(value) > MAX_COMPONENT:
            return ScoreResult.invalid(f"the grader's component {name[:80]!r} is {value:g}; scale it to at most {MAX_COMPONENT:g}")
    return result

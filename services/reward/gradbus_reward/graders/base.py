"""What every way to grade has in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gradbus.algorithms import MAX_REWARD
from gradbus.errors import GraderError
from gradbus.graders import InvalidSampleError, ScoreResult
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


def template_inputs(sample: Sample, parse: Callable[[str], Any] = json.loads) -> tuple[dict[str, str], Any]:
    """What templates call `sample` and `item`. Raises ValueError for an item that is no JSON."""
    return {"output_text": sample.response, "finish_reason": sample.finish_reason}, parse(sample.item_json or "{}")


def not_gradable(error: GraderError | ValueError) -> ScoreResult:
    """The result of a sample whose templates cannot be rendered: its own fault, or that of the grader or the dataset."""
    if isinstance(error, InvalidSampleError):
        return ScoreResult.invalid(str(error))
    return ScoreResult.error(str(error), permanent=True)


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

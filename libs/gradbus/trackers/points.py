"""From the events of a run's history to the points of its charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gradbus.resources.runs import EventResource

EVENT: Final = "gradbus/event"
"""The value of each point that says which event it comes from."""
Group = Literal["train", "eval"]
STEPS: Final[Mapping[str, tuple[Group, str]]] = {"metrics": ("train", "step"), "evaluation": ("eval", "version")}
"""Type of event to the group of its metrics, and the field that is their step."""


@dataclass(frozen=True, slots=True)
class Point:
    """The metrics of a step, or of the evaluation of a version."""

    event: int
    group: Group
    step: int
    """The step, counted from 0; of an evaluation the version, which counts the steps before it."""
    unix_seconds: float
    values: Mapping[str, float]
    """Names as `train/reward`, `eval/accuracy`, `train/seconds/wait`; with that of the event."""


class PointReader:
    """Reads events in their order. A step that a restarted trainer reports again is left out, whatever it reports."""

    def __init__(self) -> None:
        self._last: dict[Group, int] = {}

    def point(self, event: EventResource) -> Point | None:
        """The point of an event of the gateway; None if it has none, or one that was there before."""
        if event.type not in STEPS:
            return None
        group, field = STEPS[event.type]
        step, values = event.data.get(field), dict(finite_numbers(event.data, group))
        if type(step) is not int or step <= self._last.get(group, -1) or len(values) < 2:
            return None
        self._last[group] = step
        moment = event.created_at.timestamp()
        return Point(event.id, group, step, moment, values | {EVENT: float(event.id)})


def finite_numbers(value: object, path: str) -> Iterator[tuple[str, float]]:
    """The finite numbers in an object, by their path below `path`: `seconds/wait`. Truth values are none."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from finite_numbers(part, f"{path}/{key}" if path else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield path, float(value)

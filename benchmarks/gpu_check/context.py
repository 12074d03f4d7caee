"""What a part gets, and how it tells its findings: a line of JSON each, written at once, so that a kill loses none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_check.results import Check, finite


class SkipPartError(Exception):
    """The part cannot run here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Context:
    """A part's surroundings."""

    device: str
    """`cuda`, or `cpu` in dry mode."""
    dry: bool
    """Toy sizes on the CPU: shows that the part runs, and nothing about a GPU."""
    folder: Path
    """Scratch, in memory if there is room; removed after the part."""
    findings: Path
    ceilings: Mapping[str, float]
    """The probes of this run by name; empty for the probe itself."""

    def correct(self, name: str, value: float, bound: float = 0.0, unit: str = "") -> None:
        """A check that fails the whole run if `value` is above `bound` or not finite."""
        self._tell("check", asdict(Check(name, "correct", finite(value), unit, bound, None, None, "", value <= bound)))

    def holds(self, name: str, condition: bool) -> None:
        """A `correct` check of a condition: the value is 0 where it holds and 1 where it does not."""
        self.correct(name, 0.0 if condition else 1.0)

    def speed(self, name: str, value: float, unit: str, ceiling: tuple[str, float] | None = None, floor: float | None = None) -> None:
        """A speed that is told beside `ceiling`, its name and size in `unit`, and never fails; `floor` is the share hoped for on a GPU."""
        floor = None if self.dry else floor
        share = value / ceiling[1] if ceiling is not None and ceiling[1] > 0 else None
        ok = floor is None or share is None or share >= floor
        expected = None if floor is None or ceiling is None else finite(floor * ceiling[1])
        found = Check(
            name, "speed", finite(value), unit, floor, expected, None if share is None else finite(share), ceiling[0] if ceiling else "", ok
        )
        self._tell("check", asdict(found))

    def fact(self, section: str, values: Mapping[str, Any]) -> None:
        """Adds to the report's `device`, `versions` or `probes`."""
        self._tell("fact", {"section": section, "values": dict(values)})

    def _tell(self, kind: str, content: Mapping[str, Any]) -> None:
        with self.findings.open("a") as file:
            file.write(json.dumps({kind: content}, allow_nan=False) + "\n")

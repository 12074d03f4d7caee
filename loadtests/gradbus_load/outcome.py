"""Results of scenarios."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Plot = Callable[[Any, Any], None]
"""Draws an outcome's data on matplotlib axes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One measurement, with its floor if there is one."""

    measure: str
    value: float
    unit: str
    floor: float | None = None
    better: Literal["more", "less"] = "more"

    @property
    def holds(self) -> bool | None:
        """Whether the value reaches the floor; None without one."""
        if self.floor is None:
            return None
        return self.value >= self.floor if self.better == "more" else self.value <= self.floor


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario's result."""

    scenario: str
    findings: list[Finding]
    header: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """A table below the findings."""
    data: dict[str, Any] = field(default_factory=dict)
    """Settings and measurements, as JSON."""
    plot: Plot | None = None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Quantile `share` of sorted values; NaN without values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan

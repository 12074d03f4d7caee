"""A metric as the registry describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Instrument = Literal["counter", "up_down_counter", "gauge", "histogram"]
"""Histograms record each value; the others are read when metrics are exported, so that an update costs next to nothing."""

EVERY: Final = ("gateway", "conductor", "rollout", "reward", "environment", "agent", "reference", "trainer", "weight_store")
"""Every service."""
RUN: Final = "gradbus.run.id"
LONG_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Buckets of what may take minutes."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Only `gradbus.run.id` has unbounded values, and its series are exported only while the run is active."""

    name: str
    instrument: Instrument
    unit: str
    services: tuple[str, ...]
    """The services that emit it."""
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    zeros: tuple[Mapping[str, str], ...] = field(default=(), hash=False)
    """Attributes whose series start at 0, so that their first increase is visible to `rate`."""


def each(name: str, *values: str) -> tuple[Mapping[str, str], ...]:
    """`zeros` of a metric whose one attribute has these values."""
    return tuple({name: value} for value in values)

"""How weights travel, in numbers: bytes by the way they took, time until they sample, and what went wrong on the way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from opentelemetry import metrics
from opentelemetry.metrics import Counter, Histogram

Way = Literal["store", "delta"]
"""`store`: whole files through object storage; `delta`: what changed, through object storage."""
Direction = Literal["published", "fetched"]
Trouble = Literal["unchanged", "behind", "digest_differs"]
"""A step that should have changed weights and did not; a worker that stays at an old version; one that holds other weights."""


def weights_moved(way: Way, direction: Direction, size: int) -> None:
    """Counts bytes of weights put into or taken out of object storage."""
    _instruments().moved.add(size, {"gradbus.weights.way": way, "gradbus.weights.direction": direction})


def weights_active(seconds: float) -> None:
    """Notes how long after its announcement a version was proven to be in an engine; the wait for a task that wants it is in it."""
    _instruments().active.record(seconds)


def way_failed(way: str) -> None:
    """Counts shards that another way had to bring."""
    _instruments().fallbacks.add(1, {"gradbus.weights.way": way})


def weights_trouble(kind: Trouble) -> None:
    """Counts what is an event of its run as well."""
    _instruments().troubles.add(1, {"gradbus.weights.trouble": kind})


@dataclass(frozen=True, slots=True)
class _Instruments:
    moved: Counter
    active: Histogram
    fallbacks: Counter
    troubles: Counter


@cache
def _instruments() -> _Instruments:
    meter = metrics.get_meter("gradbus")
    return _Instruments(
        moved=meter.create_counter("gradbus.weights.moved", "By", "Bytes of weights put into or taken out of object storage."),
        active=meter.create_histogram(
            "gradbus.weights.activation.duration", "s", "From a version's announcement to the proof that an engine holds it."
        ),
        fallbacks=meter.create_counter("gradbus.weights.fallbacks", "{shard}", "Shards that one way failed to bring and another had to."),
        troubles=meter.create_counter(
            "gradbus.weights.troubles", "{event}", "Versions that changed nothing, and workers with old or other weights."
        ),
    )

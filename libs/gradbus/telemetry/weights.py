"""How weights travel, in numbers: bytes by the way they took, time until they sample, and what went wrong on the way."""

from __future__ import annotations

from typing import Literal

from gradbus.telemetry.metrics import PROCESS, observe

Way = Literal["store", "delta"]
"""`store`: whole files through object storage; `delta`: what changed, through object storage."""
Direction = Literal["published", "fetched"]
Trouble = Literal["unchanged", "behind", "digest_differs"]
"""A step that should have changed weights and did not; a worker that stays at an old version; one that holds other weights."""


def weights_moved(way: Way, direction: Direction, size: int) -> None:
    """Counts bytes of weights put into or taken out of object storage."""
    PROCESS.count("gradbus.weights.moved", size, {"gradbus.weights.transport": way, "gradbus.weights.direction": direction})


def weights_active(seconds: float) -> None:
    """Notes how long after its announcement a version was proven to be in an engine; the wait for a task that wants it is in it."""
    observe("gradbus.weights.activation.duration", seconds)


def transport_failed(way: str) -> None:
    """Counts shards that another way had to bring."""
    PROCESS.count("gradbus.weights.fallbacks", 1, {"gradbus.weights.transport": way})


def weights_trouble(kind: Trouble) -> None:
    """Counts what is an event of its run as well."""
    PROCESS.count("gradbus.weights.troubles", 1, {"gradbus.weights.trouble": kind})

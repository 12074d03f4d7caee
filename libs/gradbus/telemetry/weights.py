"""Metrics of the weight transports: bytes by transport, time until a version is active, and failures."""

from __future__ import annotations

from typing import Literal

from gradbus.telemetry.metrics import PROCESS, observe

StoreTransport = Literal["store", "delta"]
"""`store`: whole files through object storage; `delta`: changed values through object storage."""
Direction = Literal["published", "fetched"]
Trouble = Literal["unchanged", "lagging", "digest_differs"]
"""A step that should have changed the weights and did not; a worker that stays at an old version; a worker with wrong weights."""


def weights_moved(transport: StoreTransport, direction: Direction, size: int) -> None:
    """Counts bytes of weights written to or read from object storage."""
    PROCESS.count("gradbus.weights.moved", size, {"gradbus.weights.transport": transport, "gradbus.weights.direction": direction})


def weights_active(seconds: float) -> None:
    """Records the seconds from a version's publication to the proof that an engine has it, including the wait for a task that needs it."""
    observe("gradbus.weights.activation.duration", seconds)


def transport_failed(transport: str) -> None:
    """Counts one shard that `transport` failed to bring, so that another transport had to."""
    PROCESS.count("gradbus.weights.fallbacks", 1, {"gradbus.weights.transport": transport})


def weights_trouble(kind: Trouble) -> None:
    """Counts a weight problem, which is also an event of its run."""
    PROCESS.count("gradbus.weights.troubles", 1, {"gradbus.weights.trouble": kind})

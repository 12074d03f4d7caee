"""Measures operations on a wire (NATS, Redis, gRPC, object storage, broadcast): items, time and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from types import TracebackType
from typing import Literal, Self

from gradbus.telemetry.metrics import PROCESS, observe

Wire = Literal["nats", "redis", "grpc", "objects", "broadcast"]


class WireOperation:
    """One kind of operation, e.g. appending to the log: created once, used for each operation.

    Attributes distinguish kinds of operations, never runs, groups or workers: each combination is a permanent time series.
    """

    def __init__(self, wire: Wire, attributes: Mapping[str, str], side: Literal["client", "server", ""] = "") -> None:
        self.moved = {"gradbus.wire": wire, **({"gradbus.side": side} if side else {}), **attributes}
        """Attributes of the counters."""
        self.duration = _duration(wire, side, attributes)
        """The histogram of its duration, named by OpenTelemetry's conventions where there are some."""
        self.timed = self.moved if self.duration.startswith("gradbus.") else dict(attributes)
        """Attributes of the histogram."""

    def measured(self, payload_bytes: int = 0, items: int = 1) -> Measurement:
        """Measures the block; both values may be set inside it. An error is recorded in the attribute `error.type`."""
        return Measurement(self, payload_bytes, items)


class Measurement:
    """One operation in progress."""

    __slots__ = ("_began", "_operation", "items", "payload_bytes")

    def __init__(self, operation: WireOperation, payload_bytes: int, items: int) -> None:
        self._operation = operation
        self._began = 0.0
        self.payload_bytes = payload_bytes
        self.items = items

    def __enter__(self) -> Self:
        self._began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        seconds, operation = perf_counter() - self._began, self._operation
        if kind is not None:
            observe(operation.duration, seconds, {**operation.timed, "error.type": kind.__name__})
            return
        observe(operation.duration, seconds, operation.timed)
        PROCESS.count("gradbus.wire.items", self.items, operation.moved)
        if self.payload_bytes:
            PROCESS.count("gradbus.wire.payload", self.payload_bytes, operation.moved)


def _duration(wire: Wire, side: str, attributes: Mapping[str, str]) -> str:
    match wire:
        case "nats":
            processed = attributes.get("messaging.operation.type") == "process"
            return "messaging.process.duration" if processed else "messaging.client.operation.duration"
        case "redis":
            return "db.client.operation.duration"
        case "grpc":
            return f"rpc.{side}.call.duration"
    return "gradbus.wire.duration"

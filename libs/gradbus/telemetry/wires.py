"""What every wire is measured by: items moved, time taken, bytes carried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from types import TracebackType
from typing import Literal, Self

from opentelemetry import metrics
from opentelemetry.metrics import Counter, Histogram

Wire = Literal["nats", "redis", "grpc", "objects", "collective"]


class WireOperation:
    """One kind of operation, e.g. appending to the log: made once, used each time.

    Its attributes tell kinds apart, never runs, groups or workers: each combination is a time series for ever.
    """

    def __init__(self, wire: Wire, attributes: Mapping[str, str]) -> None:
        self.attributes = {"gradbus.wire": wire, **attributes}

    def measured(self, payload_bytes: int = 0, items: int = 1) -> Measurement:
        """Measures the block; both numbers may be set inside it. An error is told by the attribute `error.type`."""
        return Measurement(self.attributes, payload_bytes, items)


class Measurement:
    """One operation under way."""

    __slots__ = ("_attributes", "_began", "items", "payload_bytes")

    def __init__(self, attributes: Mapping[str, str], payload_bytes: int, items: int) -> None:
        self._attributes = attributes
        self._began = 0.0
        self.payload_bytes = payload_bytes
        self.items = items

    def __enter__(self) -> Self:
        self._began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        numbers = _instruments()
        attributes = self._attributes if kind is None else {**self._attributes, "error.type": kind.__name__}
        numbers.seconds.record(perf_counter() - self._began, attributes)
        if kind is None:
            numbers.items.add(self.items, attributes)
            if self.payload_bytes:
                numbers.payload.add(self.payload_bytes, attributes)


@dataclass(frozen=True, slots=True)
class _Instruments:
    items: Counter
    seconds: Histogram
    payload: Counter


@cache
def _instruments() -> _Instruments:
    meter = metrics.get_meter("gradbus")
    return _Instruments(
        items=meter.create_counter("gradbus.wire.items", "{item}", "Messages, groups or objects moved by operations that succeeded."),
        seconds=meter.create_histogram("gradbus.wire.duration", "s", "Time an operation took; a read's wait for news is in it."),
        payload=meter.create_counter("gradbus.wire.payload", "By", "Bytes put on or taken off a wire."),
    )

"""Buckets of rows: what is left of a run's metrics when several steps become one point."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

Spans = list[tuple[int, int]]
_ITEM_BYTES: Final = 8
_ARRAYS: Final = 5
"""Of a curve, and of the buckets themselves."""
_ARRAY_BYTES: Final = 100
"""Of an array without its items."""


@dataclass(slots=True)
class Curve:
    """A column over buckets, float64. A bucket without a value has NaN, and 0 as its `count`. Rows share one array."""

    low: array[float]
    high: array[float]
    total: array[float]
    newest: array[float]
    """The last value of each bucket."""
    count: array[int]
    """Values of each bucket."""

    @classmethod
    def of_rows(cls, values: array[float]) -> Curve:
        """A curve whose buckets are single rows; NaN is no value."""
        return cls(values, values, values, values, array("q", [not math.isnan(value) for value in values]))

    @classmethod
    def without_values(cls, length: int) -> Curve:
        """A curve of buckets that have no value."""
        low, high, total, newest = (array("d", [math.nan]) * length for _ in range(4))
        return cls(low, high, total, newest, array("q", [0]) * length)

    def part(self, start: int, end: int) -> Curve:
        """The buckets from `start` to before `end`."""
        return Curve(self.low[start:end], self.high[start:end], self.total[start:end], self.newest[start:end], self.count[start:end])

    def extend(self, other: Curve) -> None:
        """Appends the buckets of `other`; the curve must not be one `of_rows`."""
        for mine, more in ((self.low, other.low), (self.high, other.high), (self.total, other.total), (self.newest, other.newest)):
            mine.extend(more)
        self.count.extend(other.count)

    def merged(self, spans: Spans) -> Curve:
        """The curve with one bucket for the buckets of each span."""
        if all(self.count):
            return Curve(
                array("d", [min(self.low[start:end]) for start, end in spans]),
                array("d", [max(self.high[start:end]) for start, end in spans]),
                array("d", [math.fsum(self.total[start:end]) for start, end in spans]),
                array("d", [self.newest[end - 1] for _, end in spans]),
                array("q", [sum(self.count[start:end]) for start, end in spans]),
            )
        return Curve(
            array("d", [min(_values(self.low[start:end]), default=math.nan) for start, end in spans]),
            array("d", [max(_values(self.high[start:end]), default=math.nan) for start, end in spans]),
            array("d", [math.fsum(_values(self.total[start:end])) for start, end in spans]),
            array("d", [next(_values(reversed(self.newest[start:end])), math.nan) for start, end in spans]),
            array("q", [sum(self.count[start:end]) for start, end in spans]),
        )


def _values(found: Iterable[float]) -> Iterator[float]:
    return (value for value in found if not math.isnan(value))


@dataclass(slots=True)
class Buckets:
    """Buckets of rows by ascending x, the step or the version. Times are in seconds since 1970."""

    first: array[int] = field(default_factory=lambda: array("q"))
    """The first x of each bucket."""
    last: array[int] = field(default_factory=lambda: array("q"))
    rows: array[int] = field(default_factory=lambda: array("q"))
    first_at: array[float] = field(default_factory=lambda: array("d"))
    last_at: array[float] = field(default_factory=lambda: array("d"))
    curves: dict[str, Curve] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        return (len(self.curves) + 1) * _ARRAYS * (len(self) * _ITEM_BYTES + _ARRAY_BYTES)

    def part(self, start: int, end: int) -> Buckets:
        """The buckets from `start` to before `end`."""
        numbers = (self.first[start:end], self.last[start:end], self.rows[start:end])
        times = (self.first_at[start:end], self.last_at[start:end])
        return Buckets(*numbers, *times, {name: curve.part(start, end) for name, curve in self.curves.items()})

    def extend(self, other: Buckets) -> None:
        """Appends the buckets of `other`, all of a larger x; the curves may be others. Begin with empty ones: rows share arrays."""
        for name in other.curves.keys() - self.curves.keys():
            self.curves[name] = Curve.without_values(len(self))
        for name, curve in self.curves.items():
            curve.extend(other.curves.get(name) or Curve.without_values(len(other)))
        self.first.extend(other.first)
        self.last.extend(other.last)
        self.rows.extend(other.rows)
        self.first_at.extend(other.first_at)
        self.last_at.extend(other.last_at)

    def merged(self, spans: Spans) -> Buckets:
        """One bucket for each span."""
        if len(spans) == len(self):
            return self
        return Buckets(
            array("q", [self.first[start] for start, _ in spans]),
            array("q", [self.last[end - 1] for _, end in spans]),
            array("q", [sum(self.rows[start:end]) for start, end in spans]),
            array("d", [self.first_at[start] for start, _ in spans]),
            array("d", [self.last_at[end - 1] for _, end in spans]),
            {name: curve.merged(spans) for name, curve in self.curves.items()},
        )


def spans_of(firsts: array[int], width: int, head: int, tail: int) -> Spans:
    """Spans of ascending buckets that have the same `first // width`; up to `head` and from `tail` on, each is a span of its own."""
    if not firsts:
        return []
    starts = [0]
    for at in range(1, len(firsts)):
        x, before = firsts[at], firsts[at - 1]
        if x // width != before // width or x >= tail or before <= head:
            starts.append(at)
    return list(zip(starts, [*starts[1:], len(firsts)], strict=True))

"""Feeds a sink from a run's history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

from gradbus.resources.runs import EventResource
from gradbus.trackers.points import Point, PointReader
from gradbus.trackers.sink import Sink

_AT_ONCE: Final = 500


class History(Protocol):
    """A run's events, as the client has them."""

    def events(self, run: str, after: int = 0) -> Iterator[EventResource]:
        """Those that there are."""
        ...

    def stream(self, run: str, after: int = 0) -> Iterator[EventResource]:
        """Those that come, until the run ends."""
        ...


def feed(history: History, run_id: str, sink: Sink, *, follow: bool) -> int:
    """Writes the points that the sink lacks; with `follow`, until the run ends. Returns how many it wrote.

    The history is read from its beginning, so that what is left out does not depend on where an earlier feed ended.
    """
    reader, last, after, written = PointReader(), sink.written, 0, 0

    def points(events: Iterable[EventResource]) -> Iterator[Point]:
        nonlocal after
        for event in events:
            after = event.id
            if (point := reader.point(event)) is not None and point.event > last:
                yield point

    there = points(history.events(run_id))
    while part := list(islice(there, _AT_ONCE)):
        sink.write(part)
        written += len(part)
    if follow:
        for point in points(history.stream(run_id, after)):
            sink.write([point])
            written += 1
    return written

"""The events of a long history from its end, without reading what is before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gradbus.resources.page import Page
from gradbus.resources.runs import EventResource

EventsAfter = Callable[[int], Page[EventResource]]
"""A page of the events after an id, oldest first."""


def newest_first(events_after: EventsAfter) -> Iterator[EventResource]:
    """Every event that there is now, newest first; a page is read when its events are asked for.

    Ids grow with gaps, so where a page begins that ends with a known event is searched: by doubling the distance to it after a page that
    had few events before it, by halving after one that did not reach it. In a history of a million events the first takes about 40 pages.
    """
    page = events_after(0)
    if not page.has_more:
        yield from reversed(page.data)
        return
    oldest = known = page.data[0].id
    span = 1
    while (page := events_after(known)).has_more:
        known, span = known + span, 2 * span
    yield from reversed(page.data)
    while known >= oldest:
        start = max(oldest - 1, known - span)
        page = events_after(start)
        if page.has_more and page.data[-1].id < known:
            span //= 2
            continue
        found = [event for event in page.data if event.id <= known]
        if 2 * len(found) < len(page.data):
            span *= 2
        yield from reversed(found)
        known = start

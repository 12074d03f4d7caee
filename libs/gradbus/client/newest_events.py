"""The newest events of a long history, without reading what is before them."""

from __future__ import annotations

from collections.abc import Callable

from gradbus.resources.page import Page
from gradbus.resources.runs import EventResource

EventsAfter = Callable[[int], Page[EventResource]]
"""A page of the events after an id, oldest first."""


def newest_events(events_after: EventsAfter, least: int) -> list[EventResource]:
    """At least the `least` newest events, or all if there are fewer, oldest first; a page must have room for as many.

    Ids grow with gaps, so where to begin is searched by halving: a history of a million events takes about 40 pages.
    """
    page = events_after(0)
    if not page.has_more:
        return page.data
    low = page.data[0].id  # after it there is more than a page
    high = low + 1
    while (page := events_after(high)).has_more:
        low, high = high, high + 2 * (high - low)
    while len(page.data) < least and high - low > 1:
        middle = (low + high) // 2
        found = events_after(middle)
        if found.has_more:
            low = middle
        else:
            high, page = middle, found
    return page.data

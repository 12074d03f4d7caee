"""A history is read from its end: no page before it is read whole, and gaps in the ids do not matter."""

from datetime import UTC, datetime
from itertools import islice

import pytest

from gradbus.client.newest_events import newest_first
from gradbus.resources.page import Page
from gradbus.resources.runs import EventResource

PAGE = 20
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class History:
    """Events with these ids, in pages."""

    def __init__(self, ids):
        self.ids, self.pages = ids, 0

    def after(self, sequence):
        self.pages += 1
        found = [self.event(number) for number in self.ids if number > sequence][: PAGE + 1]
        return Page[EventResource].of([(str(event.id), event) for event in found], PAGE)

    @staticmethod
    def event(number):
        return EventResource(id=number, type="metrics", level="info", message="", data={}, created_at=NOW)


HISTORIES = [range(5, 5000), range(1, 10_000_000, 3001), [*range(1, 500), *range(9_000_000, 9_000_012)], [7, *range(9_000_000, 9_000_500)]]


@pytest.mark.parametrize("ids", HISTORIES)
def test_the_newest_come_first_among_many(ids):
    history = History(ids)
    assert [event.id for event in islice(newest_first(history.after), 10)] == list(ids)[:-11:-1]
    assert history.pages < 60


@pytest.mark.parametrize("ids", HISTORIES)
def test_every_event_comes_once_in_few_pages(ids):
    history = History(ids)
    assert [event.id for event in newest_first(history.after)] == list(ids)[::-1]
    assert history.pages < 100 + 3 * len(ids) / PAGE


@pytest.mark.parametrize("count", [0, 1, 9, PAGE])
def test_a_short_history_is_one_page(count):
    history = History(range(7, 7 + count))
    assert [event.id for event in newest_first(history.after)] == list(history.ids)[::-1]
    assert history.pages == 1


def test_a_history_that_grows_meanwhile_begins_at_its_newest_and_has_each_once():
    history = History(list(range(1, 1000)))

    def growing(sequence):
        history.ids.append(history.ids[-1] + 1)
        return history.after(sequence)

    found = [event.id for event in newest_first(growing)]
    assert found == list(range(found[0], 0, -1))
    assert found[0] > 999

"""The newest events of a run: how many stay, and the step of each."""

import pytest
from structlog.testing import capture_logs

from gradbus.bus import Event
from gradbus_gateway.history.happenings import Happenings
from gradbus_gateway.history.run_history import RunHistory


def event(sequence, type_="alarm", created=0, **data):
    return Event(sequence, type_, "info", "", data, created)


def sequences(happenings):
    return [happening.event.sequence for happening in happenings.newest(1000)]


def test_as_many_events_stay_as_are_asked_for():
    happenings = Happenings(3)
    for sequence in range(5):
        happenings.add(event(sequence))
    assert sequences(happenings) == [2, 3, 4]
    assert [happening.event.sequence for happening in happenings.newest(1)] == [4]
    assert happenings.newest(0) == []


def test_fewer_stay_where_they_are_large_but_always_the_newest():
    happenings = Happenings(1000)
    for sequence in range(100):
        happenings.add(event(sequence, text="x" * 100_000))
    assert sequences(happenings) == list(range(80, 100))
    assert 2_000_000 < happenings.memory_bytes < 16_000_000
    happenings.add(event(100, text="x" * 5_000_000))
    assert sequences(happenings) == [100]


@pytest.fixture
def history(tmp_path):
    return RunHistory("run-1", tmp_path)


async def test_the_step_of_an_event_is_the_next_that_was_reported_whatever_the_clocks_say(history):
    for sequence, (type_, created, data) in enumerate(
        [
            ("metrics", 5, {"step": 0, "reward": 1.0}),
            ("alarm", 99, {}),
            ("scorer", 1, {}),
            ("metrics", 6, {"step": 0, "reward": 1.0}),  # again
            ("metrics", 7, {"step": 1, "reward": 1.0}),
            ("alarm", 3, {}),
        ]
    ):
        await history.add(event(sequence, type_, created, **data))
    assert [(happening.event.sequence, happening.step) for happening in history.happenings(400)] == [(1, 1), (2, 1), (5, None)]


async def test_columns_that_are_left_out_are_told_once_a_run(history):
    with capture_logs() as logs:
        for step in range(5):
            await history.add(event(step, "metrics", 0, step=step, parts={f"{step}, {number}": 1.0 for number in range(256)}))
    assert [(line["event"], line["run_id"], line["most"]) for line in logs] == [("history_columns_left_out", "run-1", 512)]
    assert history.size.memory_bytes < 1 << 20

"""Busy time, where work overlaps."""

import pytest

from gradbus.telemetry.busy import BusyShare, BusyTimer


def test_overlapping_blocks_count_once_and_an_open_block_counts():
    now = [0.0]
    busy = BusyTimer(lambda: now[0])
    now[0] = 5.0
    with busy:
        now[0] = 7.0
        with busy:
            now[0] = 8.0
            assert busy.total() == 3.0
        now[0] = 10.0
    now[0] = 100.0
    assert busy.total() == 5.0
    with busy:
        now[0] = 101.0
    assert busy.total() == 6.0


class Clock:
    """Stands until it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_share_is_of_the_last_full_window(clock):
    busy = BusyShare(clock)
    with busy:
        clock.now += 1.5
    assert busy.share() == 0.0, "the window is not over yet"
    clock.now += 1.5
    assert busy.share() == pytest.approx(0.5)
    clock.now += 3.0
    assert busy.share() == 0.0


def test_work_that_goes_on_counts_in_every_window(clock):
    busy = BusyShare(clock)
    with busy:
        for _ in range(2):
            clock.now += 4.0
            assert busy.share() == pytest.approx(1.0)
    clock.now += 4.0
    assert busy.share() == 0.0
    assert busy.total() == 8.0

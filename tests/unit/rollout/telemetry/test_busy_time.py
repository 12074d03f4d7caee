"""The share of its time in which a worker's engine has work."""

import pytest

from gradbus_rollout.telemetry.busy_time import BusyTime


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
    busy = BusyTime(clock)
    with busy:
        clock.now += 1.5
    assert busy.share() == 0.0, "the window is not over yet"
    clock.now += 1.5
    assert busy.share() == pytest.approx(0.5)
    clock.now += 3.0
    assert busy.share() == 0.0


def test_work_that_goes_on_counts_in_every_window(clock):
    busy = BusyTime(clock)
    with busy:
        for _ in range(2):
            clock.now += 4.0
            assert busy.share() == pytest.approx(1.0)
    clock.now += 4.0
    assert busy.share() == 0.0
    assert busy.total() == 8.0

"""The share of its time in which a worker's engine has work."""

import pytest

from gradbus_rollout.busy_time import BusyTime


class Clock:
    """Stands until it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_the_share_is_of_the_last_full_window():
    clock = Clock()
    busy = BusyTime(clock)
    busy.mark(True)
    clock.now += 1.5
    busy.mark(False)
    assert busy.share() == 0.0, "the window is not over yet"
    clock.now += 1.5
    assert busy.share() == pytest.approx(0.5)
    clock.now += 3.0
    assert busy.share() == 0.0


def test_work_that_goes_on_counts_without_another_mark():
    clock = Clock()
    busy = BusyTime(clock)
    busy.mark(True)
    clock.now += 4.0
    assert busy.share() == pytest.approx(1.0)


def test_the_total_goes_on_over_windows_and_holds_work_under_way():
    now = [0.0]
    busy = BusyTime(lambda: now[0])
    for second in range(10):
        now[0] = float(second)
        busy.mark(second % 2 == 0)
        busy.share()
    assert busy.total() == 5.0
    busy.mark(True)
    now[0] = 12.0
    assert busy.total() == 8.0

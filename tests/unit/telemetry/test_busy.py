"""Busy time, where work overlaps."""

from gradbus.telemetry.busy import BusyTimer


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

"""Tables of metrics, read downsampled, against buckets computed row by row."""

import math
import random
from fractions import Fraction

import pytest

from gradbus_gateway.history import table as tables
from gradbus_gateway.history.table import GRAIN, NEWEST, PIECE, Table


def written(seed):
    """Rows [(x, at, {column: value})] with gaps, replays and missing values, around the borders of pieces."""
    draw = random.Random(seed)
    gaps = draw.choices([1, 2, 63, 64, 900, PIECE], [60, 10, 2, 2, 1, 1], k=draw.choice([0, 1, 2, 60, 2000]))
    found, x = [], 3
    for at, gap in enumerate(gaps):
        x += gap
        values = {"a": draw.uniform(-1e6, 1e6), "c": float(x)} | ({"b": draw.gauss(0.0, 1.0)} if at > len(gaps) // 2 else {})
        if draw.random() < 0.2:
            del values["a"]
        found.append((x - draw.choice([0, 0, 0, 3]), x + 0.5, values))
    return found


def kept(rows):
    """The rows whose x is larger than that of all before."""
    found, newest = [], -1
    for row in rows:
        if row[0] > newest:
            newest = row[0]
            found.append(row)
    return found


def is_alone(rows, at):
    return at == 0 or at >= len(rows) - NEWEST


def expected(rows, start, end, width, name):
    """[first, last, rows, low, high, mean, last value] of each bucket; the mean exact."""
    groups = {}
    for at, row in enumerate(rows):
        if start <= row[0] <= end:
            groups.setdefault(("alone", row[0]) if is_alone(rows, at) else row[0] // width, []).append(row)
    found = []
    for group in groups.values():
        values = [values[name] for _, _, values in group if name in values]
        mean = float(sum(map(Fraction, values)) / len(values)) if values else None
        edges = [min(values), max(values), mean, values[-1]] if values else [None] * 4
        found.append([group[0][0], group[-1][0], len(group), *edges])
    return found


def found_of(buckets, name):
    curve = buckets.curves.get(name)
    if curve is None:
        return [[*edge, None, None, None, None] for edge in zip(buckets.first, buckets.last, buckets.rows, strict=True)]
    parts = (buckets.first, buckets.last, buckets.rows, curve.low, curve.high, curve.total, curve.count, curve.newest)
    found = []
    for first, last, rows, low, high, total, count, newest in zip(*parts, strict=True):
        values = [low, high, total / count, newest] if count else [None] * 4
        assert count or all(math.isnan(value) for value in (low, high, newest))
        found.append([first, last, rows, *values])
    return found


def filled(folder, rows):
    table = Table(folder)
    taken = [row for row in rows if table.add(*row)]
    assert taken == kept(rows)
    return table


@pytest.mark.parametrize("seed", range(40))
def test_each_bucket_has_its_extremes_its_mean_and_its_last_value(tmp_path, seed):
    draw = random.Random(seed)
    points, part = draw.choice([2, 7, 100, 500, 2000]), draw.choice([None, (draw.randrange(9000), draw.randrange(1, 1 << 17))])
    table = filled(tmp_path, written(seed))
    rows = kept(written(seed))
    start, end = (part[0], sum(part)) if part else (None, None)
    selection = table.select(start, end, points, None)
    buckets = selection.downsampled()
    low, high = (start, end) if part else ((rows[0][0], rows[-1][0]) if rows else (0, 0))
    for name in ("a", "b", "c", "no such"):
        want, got = expected(rows, low, high, selection.width, name), found_of(buckets, name)
        assert [row[:5] + row[6:] for row in got] == [row[:5] + row[6:] for row in want]
        means = [[bucket[5] for bucket in buckets if bucket[3] is not None] for buckets in (got, want)]
        assert means[0] == pytest.approx(means[1], rel=1e-9)
    assert len(buckets) <= points + 2 + NEWEST


@pytest.mark.parametrize("count", [1, 2, NEWEST, NEWEST + 1, PIECE + GRAIN])
def test_the_first_and_the_last_row_are_kept_as_they_are(tmp_path, count):
    table = filled(tmp_path, [(x, x / 2, {"a": float(x)}) for x in range(count)])
    buckets = table.select(None, None, 2, None).downsampled()
    for at, x in ((0, 0), (-1, count - 1)):
        assert (buckets.first[at], buckets.last[at], buckets.first_at[at], buckets.curves["a"].low[at]) == (x, x, x / 2, float(x))


def test_a_part_that_fits_is_exact_and_bucket_borders_do_not_move_while_the_table_grows(tmp_path):
    rows = [(x, float(x), {"a": math.sin(x)}) for x in range(3 * PIECE)]
    table = filled(tmp_path, rows)
    part = table.select(PIECE - 200, PIECE + 299, 500, None).downsampled()
    assert list(part.first) == list(part.last) == list(range(PIECE - 200, PIECE + 300))
    assert list(part.curves["a"].low) == [math.sin(x) for x in part.first]
    before = set(table.select(None, None, 200, None).downsampled().first[1:-NEWEST])
    for x in range(3 * PIECE, 3 * PIECE + 400):
        table.add(x, float(x), {"a": 0.0})
    assert before <= set(table.select(None, None, 200, None).downsampled().first)


def test_columns_are_selected_and_what_is_selected_stays_while_rows_are_added(tmp_path):
    table = filled(tmp_path, [(x, float(x), {"a": 1.0, "b": 2.0}) for x in range(2 * PIECE + 10)])
    selection = table.select(None, None, 50, frozenset({"b", "x"}))
    for x in range(2 * PIECE + 10, 4 * PIECE):
        table.add(x, float(x), {"a": 5.0, "b": 5.0})
    buckets = selection.downsampled()
    assert set(buckets.curves) == {"b"}
    assert set(buckets.curves["b"].high) == {2.0}
    assert sum(buckets.rows) == 2 * PIECE + 10


def test_memory_does_not_grow_with_the_rows_but_with_their_coarse_buckets(tmp_path):
    table = filled(tmp_path, [(x, float(x), {"a": 1.0}) for x in range(5 * PIECE)])
    assert table.size_bytes == 4 * PIECE * 3 * 8
    assert list(tmp_path.iterdir()) == []  # the file has no name
    rest = table.select(4 * PIECE, None, 500, None)
    assert (len(rest.rest), rest.pieces) == (PIECE, ())


def test_a_row_that_the_disk_has_no_room_for_is_taken_when_there_is_room(tmp_path, monkeypatch):
    table = filled(tmp_path, [(x, float(x), {"a": 1.0}) for x in range(PIECE)])
    with monkeypatch.context() as full:
        full.setattr(tables.os, "pwrite", lambda *_: 0)
        with pytest.raises(OSError, match="is full"):
            table.add(PIECE, 0.0, {"a": 2.0})
    assert table.add(PIECE, 0.0, {"a": 2.0})
    assert sum(table.select(None, None, 2, None).downsampled().rows) == PIECE + 1

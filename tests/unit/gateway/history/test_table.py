"""Tables of metrics, read downsampled, against buckets computed row by row."""

import asyncio
import math
import random
import threading
from fractions import Fraction

import pytest

from gradbus.errors import DiskError
from gradbus_gateway.history import table as tables
from gradbus_gateway.history.table import GRAIN, MOST_COLUMNS, NEWEST, PIECE, Table


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


async def filled(folder, rows):
    table = Table(folder)
    taken = [row for row in rows if await table.add(*row)]
    assert taken == kept(rows)
    return table


@pytest.mark.parametrize("seed", range(40))
async def test_each_bucket_has_its_extremes_its_mean_and_its_last_value(tmp_path, seed):
    draw = random.Random(seed)
    points, part = draw.choice([2, 7, 100, 500, 2000]), draw.choice([None, (draw.randrange(9000), draw.randrange(1, 1 << 17))])
    table = await filled(tmp_path, written(seed))
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
async def test_the_first_and_the_last_row_are_kept_as_they_are(tmp_path, count):
    table = await filled(tmp_path, [(x, x / 2, {"a": float(x)}) for x in range(count)])
    buckets = table.select(None, None, 2, None).downsampled()
    for at, x in ((0, 0), (-1, count - 1)):
        assert (buckets.first[at], buckets.last[at], buckets.first_at[at], buckets.curves["a"].low[at]) == (x, x, x / 2, float(x))


async def test_a_part_that_fits_is_exact_and_bucket_borders_do_not_move_while_the_table_grows(tmp_path):
    rows = [(x, float(x), {"a": math.sin(x)}) for x in range(3 * PIECE)]
    table = await filled(tmp_path, rows)
    part = table.select(PIECE - 200, PIECE + 299, 500, None).downsampled()
    assert list(part.first) == list(part.last) == list(range(PIECE - 200, PIECE + 300))
    assert list(part.curves["a"].low) == [math.sin(x) for x in part.first]
    before = set(table.select(None, None, 200, None).downsampled().first[1:-NEWEST])
    for x in range(3 * PIECE, 3 * PIECE + 400):
        await table.add(x, float(x), {"a": 0.0})
    assert before <= set(table.select(None, None, 200, None).downsampled().first)


async def test_columns_are_selected_and_what_is_selected_stays_while_rows_are_added(tmp_path):
    table = await filled(tmp_path, [(x, float(x), {"a": 1.0, "b": 2.0}) for x in range(2 * PIECE + 10)])
    selection = table.select(None, None, 50, frozenset({"b", "x"}))
    for x in range(2 * PIECE + 10, 4 * PIECE):
        await table.add(x, float(x), {"a": 5.0, "b": 5.0})
    buckets = selection.downsampled()
    assert set(buckets.curves) == {"b"}
    assert set(buckets.curves["b"].high) == {2.0}
    assert sum(buckets.rows) == 2 * PIECE + 10


async def test_memory_does_not_grow_with_the_rows_but_with_their_coarse_buckets(tmp_path):
    table = await filled(tmp_path, [(x, float(x), {"a": 1.0}) for x in range(5 * PIECE)])
    assert (table.size.files, table.size.disk_bytes) == (1, 4 * PIECE * 3 * 8)
    assert PIECE * 3 * 8 < table.size.memory_bytes < PIECE * 3 * 8 + 32_000
    assert list(tmp_path.iterdir()) == []  # the file has no name
    rest = table.select(4 * PIECE, None, 500, None)
    assert (rest.span, rest.pieces) == ((0, PIECE), ())


async def test_rows_are_taken_when_there_is_room_again_and_short_tables_need_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    table = await filled(tmp_path / "file" / "below", [(x, float(x), {"a": 1.0}) for x in range(PIECE)])
    with pytest.raises(DiskError, match=r"Not a directory.*GRADBUS_CACHE_DIR"):
        await table.add(PIECE, 0.0, {"a": 2.0})
    (tmp_path / "file").unlink()
    with monkeypatch.context() as full:
        full.setattr(tables.os, "pwrite", lambda *_: 0)
        with pytest.raises(DiskError, match=r"No space left.*GRADBUS_CACHE_DIR"):
            await table.add(PIECE, 0.0, {"a": 2.0})
    assert await table.add(PIECE, 0.0, {"a": 2.0})
    assert sum(table.select(None, None, 2, None).downsampled().rows) == PIECE + 1


async def test_a_piece_is_written_in_a_thread_and_its_rows_can_be_read_meanwhile(tmp_path, monkeypatch):
    table = await filled(tmp_path, [(x, float(x), {"a": float(x)}) for x in range(PIECE)])
    begun, goes_on, pwrite = threading.Event(), threading.Event(), tables.os.pwrite

    def slow(*given):
        begun.set()
        assert goes_on.wait(60)
        return pwrite(*given)

    monkeypatch.setattr(tables.os, "pwrite", slow)
    adding = asyncio.create_task(table.add(PIECE, 0.0, {"a": 0.5, "b": 1.0}))
    assert await asyncio.to_thread(begun.wait, 60)
    before = table.select(None, None, 100, None)
    goes_on.set()
    assert await adding
    for selection, rows, names in ((before, PIECE, {"a"}), (table.select(None, None, 100, None), PIECE + 1, {"a", "b"})):
        buckets = selection.downsampled()
        assert (sum(buckets.rows), set(buckets.curves), max(buckets.curves["a"].high)) == (rows, names, PIECE - 1)


async def test_names_that_are_new_at_each_step_make_no_more_than_so_many_columns(tmp_path):
    def row(x):
        return {"reward": float(x)} | {f"of {x}, {number}": 1.0 for number in range(256)}

    table = await filled(tmp_path, [(x, float(x), row(x)) for x in range(PIECE - 40, PIECE + 40)])
    buckets = table.select(None, None, 500, None).downsampled()
    assert len(buckets.curves) == MOST_COLUMNS
    assert table.has_left_out
    assert list(buckets.curves["reward"].newest) == [float(x) for x in range(PIECE - 40, PIECE + 40)]
    assert sum(buckets.curves[f"of {PIECE - 40}, 255"].count) == 1
    assert table.size.memory_bytes < 1 << 20


async def test_so_many_columns_as_may_be_are_all_kept(tmp_path):
    table = await filled(tmp_path, [(x, 0.0, {str(x): 1.0}) for x in range(MOST_COLUMNS)])
    assert not table.has_left_out
    assert len(table.select(None, None, 2, None).downsampled().curves) == MOST_COLUMNS


@pytest.mark.parametrize(("names", "points"), [(None, 512), (frozenset({"3", "no such"}), 2000), (frozenset({"no such"}), 2000)])
async def test_a_selection_of_many_columns_has_fewer_points(tmp_path, names, points):
    table = await filled(tmp_path, [(x, 0.0, {str(x % MOST_COLUMNS): 1.0}) for x in range(2000)])
    selection = table.select(None, None, 2000, names)
    assert selection.points == points
    assert len(selection.downsampled()) <= points + 1 + NEWEST


@pytest.mark.parametrize(("start", "end"), [(0, 1_000_000), (400, 1_000_000), (0, 799)])
async def test_an_end_beyond_the_table_does_not_widen_its_buckets(tmp_path, start, end):
    table = await filled(tmp_path, [(x, float(x), {"a": float(x)}) for x in range(400, 800)])
    selection = table.select(start, end, 400, None)
    assert selection.width == 1
    assert list(selection.downsampled().first) == list(range(400, 800))


@pytest.mark.parametrize(("start", "end"), [(801, None), (801, 900), (None, 3), (5, 4)])
async def test_a_part_without_rows_is_empty(tmp_path, start, end):
    table = await filled(tmp_path, [(x, float(x), {"a": float(x)}) for x in range(400, 800)])
    for width in (2, 500):
        assert len(table.select(start, end, width, None).downsampled()) == 0

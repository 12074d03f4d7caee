"""Rows of datasets beside samples: read from the stored file, of datasets that can be opened soon enough."""

import asyncio
import json

import pytest

from gradbus.errors import DiskError, StorageError
from gradbus.objects import ObjectStore
from gradbus.spec import DataSpec
from gradbus_gateway.resources import dataset_rows
from gradbus_gateway.resources.dataset_rows import DatasetRows, add_item
from gradbus_gateway.resources.samples import unreadable_sample

ROWS = [{"prompt": f"{number}", "answer": number} for number in range(3)]


@pytest.fixture
def objects(tmp_path):
    return ObjectStore.open(f"file://{tmp_path}/objects")


@pytest.fixture
def rows(objects, tmp_path):
    return DatasetRows(objects, tmp_path / "cache")


async def stored(objects, lines):
    return DataSpec(train=await objects.put_blob("".join(json.dumps(line) + "\n" for line in lines).encode()))


def sample(row):
    return unreadable_sample("1-1", 0, "2026-01-01T00:00:00Z").model_copy(update={"row_index": row})


async def test_a_sample_gets_its_row_and_the_row_counts_for_the_page(objects, rows):
    found = await rows.of(await stored(objects, ROWS))
    one = sample(2)
    assert add_item(one, found) == len(json.dumps(ROWS[2]))
    assert one.item == ROWS[2]
    for row in (-1, 3):
        assert (add_item(other := sample(row), found), other.item) == (0, None)


async def test_a_dataset_stays_open_after_its_blob_is_gone_and_one_that_is_gone_has_no_rows(objects, rows):
    data = await stored(objects, ROWS)
    first = await rows.of(data)
    await objects.delete_blob(data.train)
    assert await rows.of(data) is first
    assert await rows.of(DataSpec(train="sha256:" + "0" * 64)) is None


async def test_a_dataset_that_is_too_large_or_damaged_has_no_rows(objects, rows, monkeypatch, tmp_path):
    data = await stored(objects, ROWS[:1])
    (tmp_path / "objects/blobs" / data.train.removeprefix("sha256:")).write_bytes(b"{}\n" * 10)
    assert await rows.of(data) is None
    monkeypatch.setattr(dataset_rows, "_MOST_BYTES", 10)
    assert await rows.of(await stored(objects, ROWS)) is None


@pytest.mark.parametrize("error", [StorageError, DiskError])
async def test_a_store_or_a_disk_that_fails_is_no_rows_and_is_asked_again(objects, rows, monkeypatch, error):
    data = await stored(objects, ROWS)

    async def fails(*_):
        raise error("it failed")

    with monkeypatch.context() as broken:
        broken.setattr(dataset_rows, "open_rows", fails)
        assert await rows.of(data) is None
    assert len(await rows.of(data)) == len(ROWS)


async def test_a_dataset_is_opened_once_and_keeps_no_other_waiting(objects, rows, monkeypatch):
    slow, quick = await stored(objects, ROWS), await stored(objects, ROWS[:1])
    open_rows, opened, may_end = dataset_rows.open_rows, [], asyncio.Event()

    async def opening(objects, digest, cache_dir):
        opened.append(digest)
        if digest == slow.train:
            await may_end.wait()
        return await open_rows(objects, digest, cache_dir)

    monkeypatch.setattr(dataset_rows, "open_rows", opening)
    waiting = [asyncio.create_task(rows.of(slow)) for _ in range(2)]
    assert len(await asyncio.wait_for(rows.of(quick), 30)) == 1
    may_end.set()
    first, second = await asyncio.gather(*waiting)
    assert first is second
    assert sorted(opened) == sorted([slow.train, quick.train])


async def test_open_datasets_are_bounded_by_their_bytes_together(objects, rows, monkeypatch):
    older, newer = await stored(objects, ROWS), await stored(objects, ROWS[:2])
    sizes = [await objects.blob_size(one.train) for one in (older, newer)]
    monkeypatch.setattr(dataset_rows, "_MOST_HELD_BYTES", sum(sizes) - 1)
    first, second = await rows.of(older), await rows.of(newer)
    assert await rows.of(newer) is second
    assert await rows.of(older) is not first

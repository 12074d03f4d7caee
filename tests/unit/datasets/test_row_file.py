"""Single rows of a file of any size."""

import pytest

from gradbus.datasets import row_file as module
from gradbus.datasets.stored import first_rows, open_rows
from gradbus.errors import CorruptRecordError, ObjectMissingError
from gradbus.objects import ObjectStore

ROWS = [f"{number} " + "x" * (number * 37 % 500) for number in range(1000)]
CONTENT = "".join(row + "\n" for row in ROWS).encode()


@pytest.mark.parametrize(("between_rows", "between_bytes"), [(64, 1 << 18), (1, 1 << 18), (64, 300), (7, 1)])
def test_every_row_is_found_however_many_places_are_kept(row_file, monkeypatch, between_rows, between_bytes):
    monkeypatch.setattr(module, "_ROWS_BETWEEN", between_rows)
    monkeypatch.setattr(module, "_BYTES_BETWEEN", between_bytes)
    for content in (CONTENT, CONTENT[:-1]):
        rows = row_file(content)
        assert [rows[number].decode() for number in range(len(rows))] == ROWS
    for wrong in (-1, 1000):
        with pytest.raises(IndexError):
            rows[wrong]


async def test_a_stored_dataset_is_checked_and_read_by_rows(tmp_path):
    objects = ObjectStore.open(f"file://{tmp_path}/objects")
    digest = await objects.put_blob(CONTENT)
    rows = await open_rows(objects, digest, tmp_path / "cache")
    assert (len(rows), rows[999].decode()) == (1000, ROWS[999])
    objects.local_path(digest).unlink()
    assert rows[500].decode() == ROWS[500], "it outlives its deletion"
    with pytest.raises(ObjectMissingError):
        await open_rows(objects, digest, tmp_path / "cache")
    await objects.put(f"blobs/{digest.removeprefix('sha256:')}", CONTENT[:-2] + b"y\n")
    with pytest.raises(CorruptRecordError):
        await open_rows(objects, digest, tmp_path / "cache")


@pytest.mark.parametrize("end", [b"\n", b""])
async def test_the_first_rows_are_read_without_the_rest(tmp_path, end):
    objects = ObjectStore.open(f"file://{tmp_path}/objects")
    digest = await objects.put_blob(CONTENT.rstrip() + end)
    for count in (1, 3, 999, 1000, 2000):
        assert [row.decode() for row in await first_rows(objects, digest, count)] == ROWS[:count]

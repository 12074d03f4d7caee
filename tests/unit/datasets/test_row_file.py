"""Single rows of a file of any size."""

import subprocess
import sys

import pytest

from gradbus.datasets import row_file as module
from gradbus.datasets.jsonl import as_line
from gradbus.datasets.stored import first_rows, open_rows
from gradbus.errors import CorruptRecordError, ObjectMissingError
from gradbus.objects import ObjectStore

ROWS = [f"{number} " + "x" * (number * 37 % 500) for number in range(1000)]
CONTENT = "".join(row + "\n" for row in ROWS).encode()

RESIDENT = """
import resource, sys
from pathlib import Path
from gradbus.datasets.row_file import RowFile
rows = RowFile(Path(sys.argv[1]))
assert rows[len(rows) - 1] and rows[len(rows) // 2]
print(len(rows), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


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


def test_memory_does_not_grow_with_rows(tmp_path):
    """A million rows more, 100 MB, take less than a megabyte: 5 GB would take less than 50."""
    line, found = as_line({"prompt": "x" * 85}), {}
    for count in (1000, 1_001_000):
        path = tmp_path / str(count)
        with path.open("wb") as out:
            for _ in range(count // 1000):
                out.write(line * 1000)
        answer = subprocess.run([sys.executable, "-c", RESIDENT, path], capture_output=True, text=True, check=True).stdout.split()
        assert int(answer[0]) == count
        found[count] = int(answer[1])
    assert found[1_001_000] - found[1000] < 1024, f"KiB at most: {found}"


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

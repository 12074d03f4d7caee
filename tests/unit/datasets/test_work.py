"""Passes over a dataset in a process of their own."""

import os

import pyarrow as arrow
import pytest
from pyarrow import parquet

from gradbus.datasets import work
from gradbus.datasets.prepare import DatasetFile, RowPlan
from gradbus.datasets.work import PrepareWork, PromptsWork, done
from gradbus.errors import DatasetError
from gradbus.spec import RowColumns

SECONDS = 300.0


@pytest.fixture
def prepare(tmp_path):
    def made(path, **changed):
        return PrepareWork(**({"files": [DatasetFile("", path)], "plan": RowPlan(columns=RowColumns()), "out": tmp_path / "out"} | changed))

    return made


def test_a_thread_is_for_small_json_lines(prepare, written, monkeypatch):
    monkeypatch.setattr(work, "_IN_THREAD_BYTES", 10)
    assert [prepare(written(content), most_bytes=1).is_small for content in (b"{}\n", b"{}" * 9, b"PAR1")] == [True, False, False]


async def test_a_process_finds_what_a_thread_finds(prepare, written, tmp_path, monkeypatch):
    path = written(b'{"question": "a"}\n{"question": "b", "note": 1}\n')
    plan = RowPlan(columns=RowColumns(), names={"prompt": "question"})
    found = []
    for limit in (1 << 20, 0):
        monkeypatch.setattr(work, "_IN_THREAD_BYTES", limit)
        rows, prompts = tmp_path / f"rows-{limit}", tmp_path / f"prompts-{limit}"
        info = await done(prepare(path, plan=plan, out=rows, most_bytes=1000), SECONDS)
        await done(PromptsWork(rows=rows, columns=plan.columns, out=prompts), SECONDS)
        found.append((info, rows.read_bytes(), prompts.read_bytes()))
    assert found[0] == found[1]
    assert found[0][2] == b'{"prompt": "a"}\n{"prompt": "b"}\n'


async def test_a_wrong_row_is_named(prepare, written, monkeypatch):
    monkeypatch.setattr(work, "_IN_THREAD_BYTES", 0)
    with pytest.raises(DatasetError, match="line 1 has no column 'prompt'"):
        await done(prepare(written(b'{"a": 1}\n'), most_bytes=100), SECONDS)


async def test_parquet_that_unpacks_to_gigabytes_ends_its_process_alone(prepare, tmp_path):
    """The rows of one batch have 2.5 GB of text, in a file of less than a megabyte."""
    path = tmp_path / "bomb.parquet"
    text = arrow.array(["x" * (1 << 20)])
    column = arrow.DictionaryArray.from_arrays(arrow.array([0] * 2560, arrow.int32()), text)
    lists = arrow.ListArray.from_arrays(arrow.array([0, 2560], arrow.int32()), column)
    parquet.write_table(arrow.table({"prompt": ["a"], "bomb": lists}), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DatasetError, match=r"does not fit into memory|cannot be read|more than 1048576 bytes|ended with status"):
        await done(prepare(path, most_bytes=1 << 40), SECONDS)


async def test_a_pass_that_takes_too_long_is_ended(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "_IN_THREAD_BYTES", -1)
    os.mkfifo(tmp_path / "endless")
    holder = os.open(tmp_path / "endless", os.O_RDWR)
    try:
        with pytest.raises(DatasetError, match=r"took longer than 0\.5 s"):
            await done(prepare(tmp_path / "endless", most_bytes=1), 0.5)
    finally:
        os.close(holder)

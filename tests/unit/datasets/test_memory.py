"""Memory does not grow with rows, in any pass and in no reader."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from gradbus.datasets.jsonl import as_line

PROGRAM = Path(__file__).with_name("resident.py")
ROW = {"prompt": "x" * 400, "answer": "y" * 80, "level": 3}
GROUP = 2000
FEW, MANY = 5, 50
"""Row groups: 5 MB and 50 MB."""
SLACK_KIB = 8 << 10
"""What an allocator may differ by. Reading a dataset whole would take 45 MB more."""


def write_lines(path, groups):
    with path.open("wb") as out:
        for _ in range(groups):
            out.write(as_line(ROW) * GROUP)


def write_parquet(path, groups):
    table = arrow.Table.from_pylist([ROW] * GROUP)
    with parquet.ParquetWriter(path, table.schema, use_dictionary=False, compression="none") as out:
        for _ in range(groups):
            out.write_table(table)


@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_memory_does_not_grow_with_rows(tmp_path, write):
    found = {}
    for groups in (FEW, MANY):
        folder = tmp_path / str(groups)
        folder.mkdir()
        write(folder / "given", groups)
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
        command = [sys.executable, PROGRAM, folder / "given", folder]
        rows, kib = map(int, subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split())
        assert rows == groups * GROUP
        found[groups] = kib
    assert found[MANY] - found[FEW] < SLACK_KIB
    assert found[MANY] < 300 << 10

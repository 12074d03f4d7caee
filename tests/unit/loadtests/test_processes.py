"""Syncs of a process, counted by strace."""

import asyncio
import shutil
import sys

import pytest

from gradbus_load import processes

TABLE = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 66.21    0.008467         132        64           fsync
 33.79    0.004321         110         3         1 fdatasync
------ ----------- ----------- --------- --------- ----------------
100.00    0.012788         190        67         1 total
"""


def test_calls_are_read_from_the_table():
    assert processes.counted_syncs(TABLE) == 67
    assert processes.counted_syncs("strace: Process 7 attached\n") == 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_a_process_that_syncs_is_seen_and_one_that_has_ended_has_no_count(tmp_path):
    loop = "import os, sys\nfile = open(sys.argv[1], 'wb')\nwhile True: os.fsync(file.fileno())"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", loop, str(tmp_path / "file"))
    found = await processes.syncs_per_second(process.pid, 1.0)
    process.kill()
    await process.wait()
    assert found is None or found > 0, "None: strace may not trace here"
    assert await processes.syncs_per_second(process.pid, 5.0) is None

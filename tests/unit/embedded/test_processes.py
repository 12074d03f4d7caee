import asyncio
import os
import subprocess
import sys

import pytest

from gradbus.embedded.processes import is_running, wait_until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_process_runs_until_it_ended_reaped_or_not():
    assert is_running(os.getpid())
    process = subprocess.Popen(["sleep", "600"])
    assert is_running(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(process.pid)
    process.wait()
    assert not is_running(process.pid)


async def test_it_waits_for_a_process_that_is_about_to_end():
    process = await asyncio.create_subprocess_exec("sleep", "0.3")
    await wait_until_gone({"processes": {"nats": {"pid": process.pid}, "buffer": {"pid": None}}})
    assert not is_running(process.pid)
    await process.wait()


@pytest.mark.parametrize("damaged", [{}, {"processes": None}, {"processes": {"nats": 1}}, {"processes": {"nats": {"pid": "x"}}}])
async def test_a_damaged_note_names_nobody(damaged):
    await wait_until_gone(damaged)

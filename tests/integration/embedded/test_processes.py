"""One supervised process, without a stack around it."""

import asyncio
import os
import sys

import pytest

from gradbus.embedded.processes import Program, SupervisedProcess


def program(tmp_path, source):
    return Program([sys.executable, "-u", "-c", source], dict(os.environ), tmp_path / "log")


async def test_a_disk_that_is_full_does_not_end_the_supervision(tmp_path, until):
    def changed():
        raise OSError(28, "No space left on device")

    process = SupervisedProcess("sleeper", lambda: program(tmp_path, "import time; time.sleep(600)"), changed)
    process.start()
    await until(lambda: process.pid)
    await process.kill()
    await until(lambda: process.pid and process.restarts == 1)
    await process.stop(5.0)
    assert (process.state, process.pid) == ("stopped", None)


async def test_a_process_that_does_not_drain_is_killed(tmp_path, until):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
    process = SupervisedProcess("deaf", lambda: program(tmp_path, deaf), lambda: None)
    process.start()
    await until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "up\n")
    await process.stop(0.2)
    assert (process.state, process.restarts) == ("stopped", 0)


async def test_a_stop_while_it_waits_to_come_back_is_heeded(tmp_path, until):
    process = SupervisedProcess("broken", lambda: program(tmp_path, "raise SystemExit(1)"), lambda: None)
    process.start()
    await until(lambda: process.restarts >= 2)
    await process.stop(5.0)
    stopped_at = process.restarts
    await asyncio.sleep(0.6)
    assert (process.state, process.pid, process.restarts) == ("stopped", None, stopped_at)


SLOW = """
import os, signal, sys, time

def drain(*_):
    while not os.path.exists({go!r}):
        time.sleep(0.02)
    print("drained")
    sys.exit()

signal.signal(signal.SIGTERM, drain)
print("up")
time.sleep(600)
"""


async def test_a_cancelled_stop_leaves_the_process_to_its_drain(tmp_path, until):
    go = tmp_path / "go"
    process = SupervisedProcess("slow", lambda: program(tmp_path, SLOW.format(go=str(go))), lambda: None)
    process.start()
    await until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "up\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.stop(60.0), 0.1)
    go.touch()
    await until(lambda: process.state == "stopped")
    assert (tmp_path / "log").read_text() == "up\ndrained\n"


LEAVES_A_CHILD = """
import os, sys, time

if os.fork() == 0:
    os.setpgid(0, 0)
    print(os.getpid())
    time.sleep(600)
time.sleep(600)
"""


async def test_a_child_that_a_dead_process_left_ends_though_it_leads_a_group_of_its_own(tmp_path, is_alive, until):
    log = tmp_path / "log"
    process = SupervisedProcess("parent", lambda: program(tmp_path, LEAVES_A_CHILD), lambda: None)
    process.start()
    await until(lambda: log.exists() and log.read_text().endswith("\n"))
    child = int(log.read_text().split()[0])
    assert is_alive(child)
    await process.kill()
    await until(lambda: not is_alive(child))
    await process.stop(5.0)

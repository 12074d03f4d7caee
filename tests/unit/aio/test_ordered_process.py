"""A process that does one order."""

import asyncio
from pathlib import Path

import pytest

from gradbus.aio.ordered_process import answer_of

ECHO = "import sys\norder = sys.stdin.readline()\nprint(order.strip().upper())\nsys.exit(3)\n"
WAITS = "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Of a process that finds the modules of a new folder, and begins in it."""
    monkeypatch.chdir(tmp_path)
    for name, source in {"echo": ECHO, "waits": WAITS, "ends": "raise SystemExit(5)"}.items():
        (tmp_path / f"{name}.py").write_text(source)
    return {"PYTHONPATH": str(tmp_path)}


async def test_what_it_writes_is_the_answer(environment):
    assert await answer_of("echo", b"an order", environment, 60.0) == (b"AN ORDER\n", 3)


def test_one_that_takes_too_long_is_killed(environment):
    began, seconds = Path("pid"), 1.0
    while not began.exists():  # on a busy machine its time may be over before it begins
        with pytest.raises(TimeoutError):
            asyncio.run(answer_of("waits", b"an order", environment, seconds))
        seconds *= 2.0
    assert not Path("/proc", began.read_text()).exists()


async def test_one_that_reads_no_order_has_an_empty_answer(environment):
    assert await answer_of("ends", b"x" * (1 << 22), environment, 60.0) == (b"", 5)

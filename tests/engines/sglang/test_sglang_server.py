"""The server's processes: how they start, fail to start and end, and what other users of the machine can see of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import sglang_lab
from sglang_lab import make_folder

from gradbus.control.failures import RunFailures
from gradbus.errors import EngineError, first_line
from gradbus_rollout.engines.base import PromptGroup, TokenSpan
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangEngine, SGLangSettings, launched_server
from gradbus_rollout.engines.sglang.server import Server

CONFIG = SGLangConfig(slots=8, max_new_tokens=200)


@pytest.fixture
def folder(tmp_path):
    make_folder(tmp_path)
    return tmp_path


def processes(group):
    """Command lines of a process group."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == group:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


async def fails(folder, **changes):
    server = Server(folder, CONFIG, SGLangSettings(**{"start_seconds": 120.0} | changes), folder / "server.log")
    with pytest.raises(EngineError) as caught:
        await server.start()
    assert server.pid is None
    await server.close()
    return caught.value


async def test_a_python_that_is_not_there_is_a_failed_start(folder):
    error = await fails(folder, python="/nowhere/python")
    assert str(error) == "start_failed: there is no program /nowhere/python; set GRADBUS_SGLANG_PYTHON to a Python that has SGLang"


async def test_a_python_without_sglang_is_a_failed_start_with_the_end_of_the_log(folder):
    error = await fails(folder, python=sys.executable)
    assert error.state == "start_failed"
    assert "set GRADBUS_SGLANG_PYTHON to a Python that has SGLang" in str(error)
    assert "server.log" in str(error)


@pytest.mark.parametrize("listens", [True, False], ids=["listens", "has ended"])
async def test_a_port_that_somebody_listens_at_is_a_failed_start_that_says_so(folder, listens):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            other.accept()[0].close()  # ended by this side, the connection lingers
        if not listens:
            other.close()
        error = await fails(folder, python=sys.executable, port=port)
    assert (f"cannot have port {port} of 127.0.0.1 (Address already in use)" in str(error)) == listens
    assert ("GRADBUS_SGLANG_PORT" in str(error)) == listens


async def test_a_start_that_takes_too_long_is_ended(folder, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    error = await fails(folder, python=str(slow), start_seconds=0.5)
    assert error.state == "start_failed"
    assert "is still running" in str(error)


@pytest.mark.parametrize(
    "words", ["torch.OutOfMemoryError: CUDA out of memory.", "Not enough memory. Please try to increase", "MemoryError"]
)
async def test_a_start_that_lacks_memory_says_so(folder, tmp_path, words):
    poor = tmp_path / "poor"
    poor.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    poor.chmod(0o755)
    error = await fails(folder, python=str(poor))
    assert error.state == "out_of_memory"
    assert "rollout.slots" in str(error)


SUICIDE = """#!/bin/sh
echo "[2026-01-31 12:00:0$$ TP0] Scheduler hit an exception: Traceback (most recent call last):
  File 'scheduler.py', line 1
RuntimeError: cannot open $TMPDIR/socket for process $$

[2026-01-31 12:00:10] Received sigquit from a child process. It usually means the child failed." >&2
kill -KILL $$
"""


def suicidal(tmp_path):
    """A program that ends as a server whose child failed: it kills itself."""
    (tmp_path / "suicidal").write_text(SUICIDE)
    (tmp_path / "suicidal").chmod(0o755)
    return str(tmp_path / "suicidal")


async def test_a_server_that_kills_itself_tells_its_error_and_after_three_starts_the_run_ends_with_it(folder, tmp_path):
    failures = RunFailures("run")
    for _ in range(3):
        assert not failures.ends_run
        failures.add(error := await fails(folder, python=suicidal(tmp_path)))
    assert error.state == "start_failed"
    assert failures.ends_run
    assert "ended with status 137 (RuntimeError: cannot open $TMPDIR for process" in failures.cause


async def test_a_server_that_the_kernel_killed_for_memory_says_so(folder, tmp_path, monkeypatch):
    kills = iter(range(9))
    monkeypatch.setattr(launched_server, "kernel_kills", lambda: next(kills))
    error = await fails(folder, python=suicidal(tmp_path))
    assert error.state == "out_of_memory"
    assert "was killed by the kernel for memory; give it more memory" in first_line(error)


async def test_a_server_has_its_own_number_of_threads_and_of_devices(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "shows").write_text('#!/bin/sh\necho "threads ${OMP_NUM_THREADS:-unset}" "$@"\nexit 1\n')
    (tmp_path / "shows").chmod(0o755)
    plain = str(await fails(folder, python=str(tmp_path / "shows")))
    assert "threads unset -m sglang.launch_server" in plain
    assert "--tp-size" not in plain
    chosen = str(await fails(folder, python=str(tmp_path / "shows"), threads=4, tensor_parallel=2))
    assert "threads 4 -m sglang.launch_server" in chosen
    assert "--tp-size 2" in chosen


async def test_the_log_of_the_start_before_is_kept(folder, tmp_path):
    for words in ("first", "second"):
        (tmp_path / words).write_text(f"#!/bin/sh\necho {words}\nexit 1\n")
        (tmp_path / words).chmod(0o755)
        assert words in str(await fails(folder, python=str(tmp_path / words)))
    assert (folder / "server.log").read_text() == "second\n"
    assert (folder / "server.log.before").read_text() == "first\n"


async def test_no_key_that_is_made_for_a_server_looks_like_a_flag(folder):
    servers = [Server(folder, CONFIG, SGLangSettings(), folder / "server.log") for _ in range(16)]
    keys = {server._launch.key for server in servers}
    assert len(keys) == 16
    assert all(key.isalnum() for key in keys)
    for server in servers:
        await server.close()


async def test_a_url_where_nobody_answers_is_waited_for_and_given_up(folder):
    error = await fails(folder, url="http://127.0.0.1:9", start_seconds=0.5)
    assert error.state == "start_failed"
    assert "no SGLang server answered" in str(error)


@pytest.mark.engines
@pytest.mark.timeout(900)
async def test_a_server_that_is_killed_is_started_anew_with_the_version_and_no_sample_is_lost(folder):
    engine = SGLangEngine(folder, CONFIG, sglang_lab.settings(key="", start_seconds=400.0), folder / "cache")
    try:
        digest = await engine.load([folder / "model.safetensors"], 7)
        first = engine.server.pid
        assert engine.name == "sglang 0.5.21 cpu float32"
        commands = processes(first)
        assert len(commands) >= 3, "launcher, scheduler, detokenizer"
        assert not any(engine.server._launch.key in command for command in commands.values())
        running = asyncio.create_task(engine.generate([PromptGroup("a", (1, 2, 3), tuple(range(12)))]))
        await asyncio.sleep(0.5)
        os.killpg(first, signal.SIGKILL)
        (group,) = await running
        assert [completion.spans for completion in group.completions] == [(TokenSpan(0, 200, 7),)] * 12
        assert (engine.server.starts, engine.version) == (2, 7)
        assert digest == await engine.load([folder / "model.safetensors"], 8)
        second = engine.server.pid
    finally:
        await engine.close()
    assert not processes(first)
    assert not processes(second)


SERVER = """#!/bin/sh
# Ends for no other's death, as a server that is starting.
trap '' TERM HUP
sleep 1000 &
sleep 1000 &
wait
"""
WORKER = """
import asyncio, pathlib, sys
from gradbus_rollout.engines.sglang import SGLangConfig, SGLangSettings
from gradbus_rollout.engines.sglang.launched_server import LaunchConfig, LaunchedServer

async def main():
    folder = pathlib.Path(sys.argv[1])
    settings = SGLangSettings(python=str(folder / "server"))
    server = await LaunchedServer.start(LaunchConfig(settings, folder, SGLangConfig(slots=4), "key", folder / "log"))
    print(server.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_no_process_of_a_server_outlives_its_worker_however_that_ends(tmp_path, number):
    (tmp_path / "server").write_text(SERVER)
    (tmp_path / "server").chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as worker:  # noqa: ASYNC220
        group = int(worker.stdout.readline())
        async with asyncio.timeout(60):
            while len(processes(group)) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        worker.send_signal(number)
    async with asyncio.timeout(60):
        while processes(group):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

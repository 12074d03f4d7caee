"""The supervisor process: runs a stack until a signal ends it, in the terminal or detached from it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gradbus.embedded.config import StackConfig
from gradbus.embedded.stack import Stack
from gradbus.embedded.state import StateFolder
from gradbus.errors import StackError

_STARTED = b"ready"


async def serve(config: StackConfig, ready: Callable[[], None], stopping: Callable[[], None] = lambda: None) -> None:
    """Runs the stack until SIGINT, SIGTERM or SIGHUP, then calls `stopping` and stops it in order. `ready` is called once it is ready.

    Raises StackError when it does not start.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    running = asyncio.create_task(_run(config, ready), name="stack")
    signalled = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({running, signalled}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not running.done():
        stopping()
        running.cancel()  # only once: a second signal must not interrupt the orderly stop
        await asyncio.wait({running})
    if not running.cancelled():
        running.result()


async def _run(config: StackConfig, ready: Callable[[], None]) -> None:
    async with Stack(config):
        ready()
        await asyncio.Event().wait()


def start_detached(config: StackConfig, layout: Path | None = None) -> None:
    """Starts a supervisor that outlives this process; returns when the stack is ready. Raises StackError when it does not start.

    `layout` is the file that the configuration's layout was read from.
    """
    state = StateFolder(config.state)
    state.logs.mkdir(parents=True, exist_ok=True)
    answers, report = os.pipe()
    command = [sys.executable, "-m", "gradbus.embedded", "--state", str(state.root), "--port", str(config.port)]
    command += ["--trainers", str(config.trainers), "--rollouts", str(config.rollouts), "--report", str(report)]
    command += [f"--memory={role}={size}" for role, size in config.memory.items()]
    command += ["--layout", str(layout.absolute())] if layout else []
    with state.log_file("supervisor").open("ab") as log:
        subprocess.Popen(  # it is meant to outlive this process
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(report,), start_new_session=True
        )
    os.close(report)
    with os.fdopen(answers, "rb") as pipe:
        answer = pipe.read()
    if answer != _STARTED:
        raise StackError(
            answer.decode()
            or f"the supervisor ended at its start; fix the error in its log and start again:\n{state.log_tail('supervisor')}"
        )


def run_detached(config: StackConfig, report: int) -> int:
    """The supervisor of `start_detached`: reports over the pipe `report` whether the stack started. Returns the exit status."""
    try:
        asyncio.run(serve(config, lambda: _report(report, _STARTED)))
    except StackError as error:
        _report(report, str(error).encode())
        return 1
    return 0


def _report(report: int, answer: bytes) -> None:
    with os.fdopen(report, "wb") as pipe:
        pipe.write(answer)

"""Runs a stack until a signal ends it: in the terminal, or detached from it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from gradbus.embedded.config import StackConfig
from gradbus.embedded.stack import Stack
from gradbus.embedded.state import StateFolder
from gradbus.errors import StackError

_STARTED = b"ready"


async def serve(config: StackConfig, ready: Callable[[], None], stopping: Callable[[], None] = lambda: None) -> None:
    """Runs the stack, calls `ready` once it is, and stops it in order at SIGINT, SIGTERM or SIGHUP, after `stopping`. Raises StackError."""
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
        running.cancel()  # once: a second signal must not cut the orderly stop short
        await asyncio.wait({running})
    if not running.cancelled():
        running.result()


async def _run(config: StackConfig, ready: Callable[[], None]) -> None:
    async with Stack(config):
        ready()
        await asyncio.Event().wait()


def start_detached(config: StackConfig) -> None:
    """Starts a supervisor that outlives this process; returns when the stack is ready. Raises StackError when it does not get there."""
    state = StateFolder(config.state)
    state.logs.mkdir(parents=True, exist_ok=True)
    answers, report = os.pipe()
    command = [sys.executable, "-m", "gradbus.embedded", "--state", str(state.root), "--port", str(config.port)]
    command += ["--rollouts", str(config.rollouts), "--report", str(report)]
    with state.log_file("supervisor").open("ab") as log:
        subprocess.Popen(  # it outlives us on purpose
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(report,), start_new_session=True
        )
    os.close(report)
    with os.fdopen(answers, "rb") as pipe:
        answer = pipe.read()
    if answer != _STARTED:
        raise StackError(answer.decode() or f"the supervisor died at its start; its log ends so:\n{state.log_tail('supervisor')}")


def run_detached(config: StackConfig, report: int) -> int:
    """The supervisor of `start_detached`: says over the pipe `report` how the start went; the exit status."""
    try:
        asyncio.run(serve(config, lambda: _say(report, _STARTED)))
    except StackError as error:
        _say(report, str(error).encode())
        return 1
    return 0


def _say(report: int, answer: bytes) -> None:
    with os.fdopen(report, "wb") as pipe:
        pipe.write(answer)

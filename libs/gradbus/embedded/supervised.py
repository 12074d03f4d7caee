"""One process that is started again whenever it ends, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_DELAYS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_GOOD_LIFE_SECONDS = 10.0
_LAUNCHER = str(Path(__file__).with_name("child.py"))

ProcessState = Literal["stopped", "running", "waiting"]


@dataclass(frozen=True, slots=True)
class Program:
    """What to run and with what."""

    command: list[str]
    environment: Mapping[str, str]
    log: Path
    cores: frozenset[int] = field(default_factory=frozenset)
    """Cores it may use; empty: all."""


class Supervised:
    """`start`, `kill` (it comes back), `stop` (it does not)."""

    def __init__(self, name: str, program: Callable[[], Program], changed: Callable[[], None]) -> None:
        self.name = name
        self.pid: int | None = None
        self.restarts = 0
        self.state: ProcessState = "stopped"
        self.started = 0.0
        """Unix time of the newest start, seconds."""
        self._program = program
        self._changed = changed
        self._stopping = asyncio.Event()
        self._patience = 0.0
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Runs it from now on."""
        self._task = asyncio.create_task(self._keep(), name=f"supervise {self.name}")

    async def kill(self) -> None:
        """SIGKILL, and waits until the process is gone; the next one starts by itself."""
        if self.pid is not None:
            ended = self._ended
            os.kill(self.pid, signal.SIGKILL)
            await ended.wait()

    async def stop(self, patience: float) -> None:
        """SIGTERM, SIGKILL after `patience` seconds; returns when the process is gone and does not come back."""
        self._patience = patience
        self._stopping.set()
        if self._task:
            await asyncio.wait({self._task})  # a caller that is cancelled must not cancel the supervision with it

    async def _keep(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            reason = await self._run_once()
            if self._stopping.is_set():
                break
            lived = time.monotonic() - begun
            failures = 0 if lived > _GOOD_LIFE_SECONDS else failures
            delay = _DELAYS[min(failures, len(_DELAYS) - 1)]
            failures += 1
            self._warn("process_ended", reason=reason, lived_seconds=round(lived, 1), again_in_seconds=delay)
            self._enter("waiting")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            self.restarts += 1
        self._enter("stopped")

    async def _run_once(self) -> str:
        """Runs one process from start to end; why it ended."""
        try:
            process = await self._spawn()
        except OSError as error:
            return f"cannot start: {error}"
        self.pid = process.pid
        self.started = time.time()
        self._ended = asyncio.Event()
        self._enter("running")
        try:
            await self._until_ended(process)
        finally:
            _kill_group(process.pid)  # what it started itself and left behind
            self.pid = None
            self._ended.set()
        return _reason(process.returncode)

    async def _spawn(self) -> Process:
        program = self._program()
        launcher = [sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid()), ",".join(map(str, sorted(program.cores)))]
        with program.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *launcher,
                *program.command,
                env=dict(program.environment),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C reaches the supervisor alone
            )

    async def _until_ended(self, process: Process) -> None:
        ended = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait({ended}, timeout=self._patience)
        if not ended.done():
            self._warn("drain_ran_out", seconds=self._patience)
            _kill_group(process.pid)
        await ended

    def _enter(self, state: ProcessState) -> None:
        self.state = state
        try:
            self._changed()
        except OSError as error:
            self._warn("state_not_noted", error=str(error))

    def _warn(self, event: str, **context: object) -> None:
        # A full disk or a closed terminal takes the message, never the supervision.
        with contextlib.suppress(OSError, ValueError):
            _log.warning(event, process=self.name, **context)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _reason(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"killed by signal {-returncode} ({signal.strsignal(-returncode)})"
    return f"exit status {returncode}"

"""Supervised processes, which are restarted whenever they end, and the leftover processes of a supervisor that was killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradbus.embedded.forks.client import ForkedProcess, ForkServer
from gradbus.embedded.server_logs import LONGEST_LINE, write_as_json
from gradbus.exit_status import describe_exit
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_DELAYS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_STABLE_SECONDS = 10.0
_LEFTOVER_CHECKS, _LEFTOVER_SECONDS = 60, 0.05
_LAUNCHER = str(Path(__file__).with_name("child.py"))

ProcessState = Literal["stopped", "running", "waiting"]


@dataclass(frozen=True, slots=True)
class Fork:
    """A module that is run as `python -m` would, in a fork of a process that has imported what it needs."""

    server: ForkServer
    module: str


@dataclass(frozen=True, slots=True)
class Program:
    """A command with its environment and log file."""

    command: list[str]
    environment: Mapping[str, str]
    log: Path
    logs_json: bool = True
    """Whether it writes JSON lines itself; the lines of a server that does not are rewritten."""
    memory: int = 0
    """Bytes that it may hold with its children; 0: any."""
    fork: Fork | None = None
    """How it is forked in place of its command, where that can be."""


class SupervisedProcess:
    """One process under supervision: after `kill` it is restarted, after `stop` it is not."""

    def __init__(self, name: str, program: Callable[[], Program], changed: Callable[[], None]) -> None:
        self.name = name
        self.pid: int | None = None
        self.restarts = 0
        self.state: ProcessState = "stopped"
        self.started = 0.0
        """Unix time of the newest start, seconds."""
        self.has_wrong_settings = False
        """Whether the process before this one ended for that, as every later one will."""
        self.ended = ""
        """Why the process before this one ended."""
        self.memory = 0
        """Bytes that the process may hold; 0: any."""
        self._exceeded = 0
        self._program = program
        self._changed = changed
        self._stopping = asyncio.Event()
        self._drain_seconds = 0.0
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Starts the process and its supervision."""
        self._task = asyncio.create_task(self._supervise(), name=f"supervise {self.name}")

    async def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone; a new one is started automatically."""
        if self.pid is not None:
            ended = self._ended
            os.kill(self.pid, signal.SIGKILL)
            await ended.wait()

    def kill_oversized(self, held: int) -> None:
        """Kills a process that holds more memory than it may, `held` bytes; a new one is started automatically."""
        if self.pid is not None:
            self._exceeded = held
            _kill_session(self.pid)

    async def stop(self, drain_seconds: float) -> None:
        """Sends SIGTERM, then SIGKILL after `drain_seconds`; returns when the process is gone. It is not restarted."""
        self._drain_seconds = drain_seconds
        self._stopping.set()
        if self._task:
            await asyncio.wait({self._task})  # cancelling the caller must not cancel the supervision

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            self.ended = reason = await self._run_once()
            if self._stopping.is_set():
                break
            lifetime = time.monotonic() - started
            failures = 0 if lifetime > _STABLE_SECONDS else failures
            delay = _DELAYS[min(failures, len(_DELAYS) - 1)]
            failures += 1
            self._warn("process_ended", reason=reason, lifetime_seconds=round(lifetime, 1), restart_in_seconds=delay)
            self._enter("waiting")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            self.restarts += 1
        self._enter("stopped")

    async def _run_once(self) -> str:
        """Runs one process from start to end; returns why it ended."""
        try:
            process = await self._spawn()
        except OSError as error:
            return f"cannot start: {error}"
        self.pid, self._exceeded = process.pid, 0
        self.started = time.time()
        self._ended = asyncio.Event()
        self._enter("running")
        try:
            async with self._logged(process):
                await self._until_ended(process)
        finally:
            self.pid = None
            self._ended.set()
        if self._exceeded:
            held, limit = (f"{size / 1e9:.2f} GB" for size in (self._exceeded, self.memory))
            return f"killed: it held {held} of memory and may hold {limit}; raise its limit with `gradbus up --memory`"
        status = await process.wait()
        self.has_wrong_settings = status == os.EX_CONFIG
        return describe_exit(status)

    async def _spawn(self) -> Process | ForkedProcess:
        program = self._program()
        self.memory = program.memory
        launcher = [sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid())]
        with program.log.open("ab") as log:
            if fork := program.fork:
                try:
                    return await fork.server.fork(fork.module, program.environment, log.fileno())
                except OSError as error:
                    self._warn("not_forked", error=str(error))
            return await asyncio.create_subprocess_exec(
                *launcher,
                *program.command,
                env=dict(program.environment),
                stdin=DEVNULL,
                stdout=log if program.logs_json else PIPE,
                stderr=log if program.logs_json else STDOUT,
                limit=LONGEST_LINE,
                start_new_session=True,  # Ctrl-C in a terminal must reach only the supervisor
            )

    @asynccontextmanager
    async def _logged(self, process: Process | ForkedProcess) -> AsyncIterator[None]:
        """Rewrites the lines of a server as long as it runs."""
        lines = process.stdout
        writing = asyncio.create_task(write_as_json(self.name, lines, self._program().log)) if lines else None
        try:
            yield
        finally:
            _kill_session(process.pid)  # children that it left behind, which hold the pipe or its ports open
            if writing:
                await writing

    async def _until_ended(self, process: Process | ForkedProcess) -> None:
        ended = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait({ended}, timeout=self._drain_seconds)
        if not ended.done():
            self._warn("drain_timed_out", seconds=self._drain_seconds)
            _kill_session(process.pid)
        await ended

    def _enter(self, state: ProcessState) -> None:
        self.state = state
        try:
            self._changed()
        except OSError as error:
            self._warn("state_not_written", error=str(error))

    def _warn(self, event: str, **context: object) -> None:
        # A full disk or a closed terminal may lose the message; supervision goes on.
        with contextlib.suppress(OSError, ValueError):
            _log.warning(event, process=self.name, **context)


def _kill_session(leader: int) -> None:
    """Kills the processes of the session that `leader` began, in its process group or in one of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for process in Path("/proc").glob("[0-9]*"):  # none on systems without /proc
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(process.name)) == leader:
                os.kill(int(process.name), signal.SIGKILL)


async def wait_until_gone(last: Mapping[str, object]) -> None:
    """Waits at most three seconds until no process in `last` (the content of stack.json) runs.

    The processes of a supervisor that was killed end with it, a moment later.
    """
    processes = last.get("processes")
    entries = processes.values() if isinstance(processes, dict) else ()
    pids = [entry["pid"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("pid"), int)]
    for _ in range(_LEFTOVER_CHECKS):
        pids = [pid for pid in pids if is_running(pid)]
        if not pids:
            return
        await asyncio.sleep(_LEFTOVER_SECONDS)
    # After a reboot these pids may belong to any process, so none is killed; a port still in use is reported later.
    _log.warning("pids_of_last_stack_in_use", pids=pids)


def is_running(pid: int) -> bool:
    """Whether `pid` runs; False for a zombie, and on systems without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

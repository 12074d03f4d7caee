"""Runs commands in sandboxes, as a service sees it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from gradbus.errors import UserCodeError
from gradbus.niceness import USERS_NICENESS
from gradbus.sandbox.commands.request import Command, CommandError, Outcome, read_outcome
from gradbus.sandbox.process import boot

Level = Literal["namespaces", "bubblewrap"]
LEVELS: Final[tuple[Level, ...]] = ("namespaces", "bubblewrap")
_LIBRARIES: Final = str(Path(__file__).resolve().parents[3])
_LINE_BYTES: Final = 8 << 20
_BUBBLEWRAP: Final = "bwrap: "
"""How its messages begin."""
_END_SECONDS: Final = 10.0
_TOLD_BYTES: Final = 400
_MORE_SECONDS: Final = 20.0
"""Over a command's own time: to make its sandbox and to end it, on a busy machine."""
_log = structlog.get_logger(__name__)


class SandboxError(UserCodeError):
    """A sandbox broke, or there is none for now: the command's code is not the cause."""


class NoSandboxError(UserCodeError):
    """This machine gives no such sandbox, now or later."""


async def run_command(command: Command, level: Level) -> Outcome:
    """What came of the command. No process of it is left afterwards, also when the caller is cancelled.

    Raises SandboxError and NoSandboxError.
    """
    process = await _launched(level)
    try:
        async with asyncio.timeout(command.longest + _MORE_SECONDS):
            said = await _answer(process, json.dumps(command.document()).encode() + b"\n")
    except TimeoutError as error:
        raise SandboxError("a sandbox did not end in time; the machine is too busy") from error
    finally:
        await end_process(process)
    if "refused" in said:
        raise NoSandboxError(str(said["refused"]))
    if "failed" in said:
        raise SandboxError(f"{said['failed']}; try again")
    try:
        return read_outcome(said)
    except CommandError as error:
        raise SandboxError(f"{error}; try again") from error


@dataclass(frozen=True, slots=True)
class ServedCommand:
    """A command that runs until it is ended."""

    arguments: Sequence[str]
    paths: Sequence[str] = ()
    """What it may read and execute beside the system's programs."""
    memory_mib: int = 512
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of every command."""

    @contextlib.contextmanager
    def document(self, listener: int | None = None) -> Iterator[int]:
        """A handle of a file in memory with what its launcher takes; `listener` is a Unix socket over which it gives one that listens on
        its loopback. No argument: those of a process are there for every user to read, and variables may be secrets."""
        content = {
            "arguments": list(self.arguments),
            "paths": list(self.paths),
            "memory_mib": self.memory_mib,
            "environment": dict(self.environment),
            "listener": listener,
        }
        with open(os.memfd_create("served"), "wb") as file:
            file.write(json.dumps(content).encode())
            file.flush()
            yield file.fileno()


async def start_server(command: ServedCommand, level: Level) -> asyncio.subprocess.Process:
    """Starts a command that speaks by its standard input and output, in a sandbox without a network.

    `end_process` ends it. If there is no sandbox, it writes {"refused": reason} or {"failed": reason}. Raises SandboxError.
    """
    with command.document() as document:
        return await _launched(level, document)


async def start_client(command: ServedCommand, level: Level) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Starts a command in a sandbox with a network of its own, in which there is the returned socket alone: it listens at
    `loopback.HOST` and `PORT`, and this process accepts the command's connections.

    `end_process` ends it. Raises SandboxError and NoSandboxError.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, command.document(theirs.fileno()) as document:
            process = await _launched(level, document, theirs.fileno())
        try:
            async with asyncio.timeout(_MORE_SECONDS):
                listener = await _received(ours)
            if listener is None:
                raise await _not_started(process)
        except TimeoutError as error:
            await end_process(process)
            raise SandboxError("a sandbox did not begin in time; the machine is too busy") from error
        except BaseException:
            await end_process(process)
            raise
    return process, listener


async def _received(channel: socket.socket) -> socket.socket | None:
    """The socket that comes over a Unix socket; None if that ends."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(channel, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(channel)
    _, handles, _, _ = socket.recv_fds(channel, 1, 1)
    return socket.socket(fileno=handles[0]) if handles else None


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _not_started(process: asyncio.subprocess.Process) -> UserCodeError:
    """Why a command was not begun."""
    try:
        said = await _answer(process, b"")
    except (SandboxError, NoSandboxError) as error:
        return error
    return NoSandboxError(str(said["refused"])) if "refused" in said else SandboxError(f"{said.get('failed')}; try again")


async def found_level(levels: Sequence[Level] = LEVELS) -> tuple[Level | None, str]:
    """The first of `levels` that this machine has, by running a command in it; None, and why, if it has none of them.

    Raises SandboxError if it may have one of them later.
    """
    reasons, may_pass = [], False
    for level in levels:
        try:
            outcome = await run_command(Command(("python", "-c", "print(6 * 7)")), level)
        except (SandboxError, NoSandboxError) as error:
            reasons.append(str(error))
            may_pass = may_pass or not isinstance(error, NoSandboxError)
            continue
        if (outcome.end, outcome.code, outcome.stdout) == ("exited", 0, b"42\n"):
            return level, ""
        may_pass = may_pass or outcome.end != "exited"
        reasons.append(f"a command in {level} ended with {outcome.code}: {outcome.stderr[-200:].decode('utf-8', 'replace')}")
    if may_pass:
        raise SandboxError("; ".join(reasons))
    return None, "; ".join(reasons)


class FoundLevel:
    """How commands are confined on this machine, found when it is first asked for; for one event loop."""

    def __init__(self, commands: str, levels: Sequence[Level] = LEVELS) -> None:
        """`commands`: what messages call them."""
        self._commands, self._levels = commands, levels
        self._finding = asyncio.Lock()
        self._level: Level | None = None

    async def get(self) -> Level:
        """The first of the levels that it has. Raises NoSandboxError if it has none of them, SandboxError if that is not known now."""
        async with self._finding:
            if self._level is None:
                self._level, reason = await found_level(self._levels)
                if self._level is None:
                    raise NoSandboxError(f"{self._commands} cannot be confined here: {reason}")
                _log.info("commands_confined", commands=self._commands, level=self._level)
            return self._level


async def _answer(process: asyncio.subprocess.Process, request: bytes) -> dict[str, Any]:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise SandboxError("a sandbox has no pipes; try again")
    try:
        process.stdin.write(request)
        await process.stdin.drain()
        said = json.loads(await process.stdout.readuntil(b"\n"))
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        told = (await process.stderr.read())[-_TOLD_BYTES:].decode("utf-8", "replace").strip()
        if told.startswith(_BUBBLEWRAP):
            raise NoSandboxError(f"no sandbox: {told}") from error
        raise SandboxError(f"a sandbox ended without an answer: {told or 'check the memory of the machine'}; try again") from error
    if not isinstance(said, dict):
        raise SandboxError("a sandbox answered wrongly; try again")
    return said


async def _launched(level: Level, *handles: int) -> asyncio.subprocess.Process:
    """`handles`: of what it inherits; the first is the document of a served command."""
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-B", "-c", boot("gradbus.sandbox.commands.launch")),
            *(_LIBRARIES, _LIBRARIES, str(USERS_NICENESS), level, *map(str, handles[:1])),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            cwd="/",
            env={},
            preexec_fn=os.setpgrp,  # uvloop does not know `process_group`
            pass_fds=handles,
        )
    except OSError as error:
        raise SandboxError(f"no sandbox could be started ({error}); raise the machine's limits on processes") from error


async def end_process(process: asyncio.subprocess.Process) -> None:
    """The launcher ends process 1, and with it the kernel ends all others, before it ends itself."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

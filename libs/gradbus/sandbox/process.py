"""One confined process, as a service sees it. Nothing that it sends is trusted. `child.py` is the other end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import structlog

from gradbus.errors import UserCodeError
from gradbus.exit_status import describe_exit
from gradbus.niceness import USERS_NICENESS
from gradbus.sandbox.confinement import MEMORY_BYTES, Confinement

START_SECONDS = 30.0
"""Until a process is confined."""
_EXIT_SECONDS = 2.0
"""Until a process that has closed its pipe is killed."""
_KILL_SECONDS = 10.0
"""From SIGKILL to the end of the process, on a busy machine."""
_DROPPED_BYTES = 1 << 16
_LIBRARIES = str(Path(__file__).resolve().parents[2])
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""Without it the order of a set of texts would differ from process to process. `-I` would ignore it, so its parts are given singly."""
_FLAGS = ("-s", "-S", "-P", "-B")

_log = structlog.get_logger(__name__)


class ProcessStoppedError(UserCodeError):
    """The process died, hung or broke its protocol. It is gone, and what it was asked has no answer."""


class SourceError(UserCodeError):
    """The user's source does not load."""


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """What runs in a confined process."""

    kind: str
    """What messages call the user's code."""
    service: str
    """The service that runs it."""
    boot: str
    """Python that imports the child and calls its `main`. The first two arguments are the folders of its packages."""
    folder: str
    """The folder of the service's package."""
    line_bytes: int
    """Size limit of what a process sends at once; JSON becomes many times larger in memory."""


def boot(module: str) -> str:
    """Python that runs `main` of a child's module, which then finds neither this project's packages nor any others."""
    package, _, name = module.rpartition(".")
    return f"import sys; sys.path[:0] = sys.argv[1:3]; from {package} import {name}; del sys.path[:2]; {name}.main()"


class ConfinedProcess:
    """A process that confines itself before it loads any user's code."""

    def __init__(self, process: asyncio.subprocess.Process, program: ChildProgram) -> None:
        self._process = process
        self._program = program
        self.layers = Confinement(seccomp=False, namespace=False, landlock=False)
        """Layers in force, as the child reports before it loads any user's code."""
        self.alive = True
        """False once it is killed or found dead."""
        self._reading = asyncio.Lock()
        """A pipe has one reader: a call in flight, until the process is killed, or then `stop`."""

    @classmethod
    async def confined(cls, program: ChildProgram, *, allow_network: bool) -> Self:
        """Starts and confines a process. Raises UserCodeError if that cannot be done."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *_FLAGS, "-c", program.boot, _LIBRARIES, program.folder, str(USERS_NICENESS)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=program.line_bytes,
                cwd="/",
                env=_ENVIRONMENT,
                # No session: Linux may give each its own share of the processor, and niceness counts only within one.
                preexec_fn=os.setpgrp,  # uvloop does not know `process_group`
            )
        except OSError as error:
            raise UserCodeError(
                f"no process could be started for the {program.kind} ({error}); raise the machine's limits on processes"
            ) from error
        child = cls(process, program)
        try:
            await child._confine(allow_network=allow_network)
        except BaseException:
            await child.stop()
            raise
        return child

    @property
    def pid(self) -> int:
        """Process id of the child, which leads its own process group."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended, by itself or by a signal."""
        return self._process.returncode is not None

    def kill(self) -> None:
        """Kills the whole process group; `stop` waits for its end."""
        self.alive = False
        self._signal(signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self) -> int:
        """Kills the process, waits for its end, and returns its exit code (negative: the signal)."""
        self.kill()
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                # asyncio reports the end of a process after that of its pipe, which it does not read while its buffer is full.
                async with self._reading:
                    while self._process.stdout is not None and await self._process.stdout.read(_DROPPED_BYTES):
                        pass
                return await self._process.wait()
        except TimeoutError as error:
            raise self._stopped(f"process {self.pid} has not ended after SIGKILL; check the machine") from error

    def resume(self) -> None:
        """Lets the process compute again."""
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        """Until it is resumed the process computes nothing, whatever timers and signal handlers the user's code has set."""
        self._signal(signal.SIGSTOP)

    def _stopped(self, fault: str) -> ProcessStoppedError:
        return ProcessStoppedError(f"the {self._program.kind}'s {fault}")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _confine(self, *, allow_network: bool) -> None:
        """Waits until the child is confined. No user's code runs before, so nothing that fails here is the user's fault."""
        kind, service = self._program.kind, self._program.service
        try:
            async with asyncio.timeout(START_SECONDS):
                layers = Confinement(**await self._receive_field("layers"))
        except TimeoutError as error:
            raise UserCodeError(
                f"the {kind}'s process did not start in {START_SECONDS:.0f} s; the machine is too busy: give the {service} service more CPU"
            ) from error
        if not layers.without_network and not allow_network:
            raise UserCodeError(
                f"on this kernel the {kind} can be denied neither sockets nor the network; run the {service} service on Linux with"
                " seccomp or user namespaces, or set GRADBUS_ALLOW_UNISOLATED_NETWORK if you trust all users"
            )
        self.layers = layers
        _log.debug("confined_process_started", kind=kind, pid=self.pid, **asdict(layers))

    async def _send(self, message: object) -> None:
        stream = self._process.stdin
        body = json.dumps(message).encode()
        if stream is None:
            raise self._stopped("process has no pipe; try again")
        try:
            stream.write(body + b"\n")
            await stream.drain()
        except ConnectionError as error:
            raise self._stopped(await self._ended()) from error

    async def _receive_field(self, name: str) -> dict[str, Any]:
        message = await self._receive()
        value = message.get(name) if isinstance(message, dict) else None
        if not isinstance(value, dict):
            raise self._stopped(f"process did not send its {name} first; do not use its open files")
        return value

    async def _receive(self) -> Any:
        stream = self._process.stdout
        if stream is None:
            raise self._stopped("process has no pipe; try again")
        try:
            async with self._reading:
                line = await stream.readuntil(b"\n")
            return json.loads(line)
        except asyncio.IncompleteReadError as error:
            raise self._stopped(await self._ended()) from error
        except asyncio.LimitOverrunError as error:
            reason = f"process sent more than {self._program.line_bytes >> 10} KiB at once; do not use its open files"
            raise self._stopped(reason) from error
        except (ValueError, RecursionError) as error:
            raise self._stopped("process sent no JSON; do not use its open files") from error

    async def _ended(self) -> str:
        """How the process ended. Its pipe is closed, so it ends by itself, or else is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        code = await self.stop()
        return f"process died ({describe_exit(code)}); it may use {MEMORY_BYTES >> 20} MiB and must not exit"

"""One grader process, seen from the service. Nothing it says is trusted; `child.py` is the other end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from gradbus.errors import ScorerError
from gradbus_reward.sandbox.confinement import MEMORY_BYTES, Confinement

OPENING_BYTES = 1 << 20
ANSWER_BYTES = 64 << 10
"""Of a row; a small frame becomes many times larger in memory."""
_PARSED_IN_THREAD_BYTES = 1 << 18
START_SECONDS = 10.0
_LEAVING_SECONDS = 2.0
"""Before a process that has closed its pipe is killed."""
_KILLED_SECONDS = 10.0
"""On a busy machine the kernel takes its time."""
_DROPPED_BYTES = 1 << 16

Row = tuple[str, str, str]
"""Output text, finish reason, item as JSON."""

_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from gradbus_reward.sandbox import child; del sys.path[0]; child.main()"
_ROOT = str(Path(__file__).resolve().parents[2])

_log = structlog.get_logger(__name__)


class GraderStoppedError(ScorerError):
    """The process died, went silent or spoke nonsense: it is gone, and what it was judging has no answer."""


class GraderSourceError(ScorerError):
    """The user's source does not load."""


class GraderProcess:
    """A confined process that holds the loaded sources of one grader."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.layers = Confinement(seccomp=False, namespace=False, landlock=False)
        """What holds, as the child says before any user's code runs in it."""
        self.alive = True
        """Until it is killed or found dead."""

    @classmethod
    async def start(cls, sources: Mapping[str, str], *, allow_network: bool) -> GraderProcess:
        """Start, confine and load. Raises GraderSourceError for sources that fail, ScorerError if it cannot be confined."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-B", "-c", _BOOT, _ROOT),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )
        grader = cls(process)
        try:
            async with asyncio.timeout(START_SECONDS):
                await grader._open(sources, allow_network=allow_network)
        except TimeoutError as error:
            await grader.stop()
            raise GraderSourceError(f"the grader's source did not load in {START_SECONDS:.0f} s; do less at its top level") from error
        except BaseException:
            await grader.stop()
            raise
        return grader

    @property
    def pid(self) -> int:
        """Of the child, which leads its own process group."""
        return self._process.pid

    async def grade(self, rows: Sequence[Row], seconds: float) -> list[Mapping[str, Any]]:
        """One answer per row, in their order, as the child sent them. When there is none: the process is killed, GraderStoppedError."""
        try:
            async with asyncio.timeout(seconds):
                await self._send(rows)
                given = await self._receive(OPENING_BYTES + len(rows) * ANSWER_BYTES)
            if not isinstance(given, list) or len(given) != len(rows) or not all(isinstance(answer, dict) for answer in given):
                raise GraderStoppedError("the grader's process did not answer in its protocol; leave its open files alone")
        except TimeoutError as error:
            self.kill()
            raise GraderStoppedError(f"the grader was stopped after {seconds:.1f} s; bound its work per sample") from error
        except BaseException:
            # Also when the caller is cancelled: half an exchange is of no use to the next one.
            self.kill()
            raise
        return given

    def kill(self) -> None:
        """Kill the whole process group; `stop` waits for its end."""
        self.alive = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self) -> int:
        """Kill, wait until it is gone, and give its exit code (negative: the signal)."""
        self.kill()
        try:
            async with asyncio.timeout(_KILLED_SECONDS):
                # asyncio tells of no end before the pipe's, and looks for that no longer once there is much to read.
                while self._process.stdout is not None and await self._process.stdout.read(_DROPPED_BYTES):
                    pass
                return await self._process.wait()
        except TimeoutError as error:
            raise GraderStoppedError(f"the kernel has not ended grader process {self.pid} after SIGKILL; look at the machine") from error

    async def _open(self, sources: Mapping[str, str], *, allow_network: bool) -> None:
        layers = Confinement(**await self._receive_field("layers"))
        if not layers.without_network and not allow_network:
            raise ScorerError(
                "this kernel lets the reward service take neither sockets nor the network from a grader; run it on Linux with"
                " seccomp or user namespaces, or allow unisolated graders if you trust all who submit runs"
            )
        self.layers = layers
        _log.debug("grader_process_started", pid=self.pid, seccomp=layers.seccomp, namespace=layers.namespace, landlock=layers.landlock)
        await self._send({"sources": dict(sources)})
        try:
            faults = await self._receive_field("faults")
        except GraderStoppedError as error:
            raise GraderSourceError(f"the grader's source ended its process while it was loaded: {error}") from error
        if faults:
            raise GraderSourceError("; ".join(f"grader {part!r} does not load: {reason}" for part, reason in faults.items()))

    async def _send(self, message: object) -> None:
        stream = self._process.stdin
        body = json.dumps(message).encode()
        if stream is None:
            raise GraderStoppedError("the grader's process has no pipe; score again")
        try:
            stream.write(struct.pack(">I", len(body)) + body)
            await stream.drain()
        except ConnectionError as error:
            raise GraderStoppedError(await self._ended()) from error

    async def _receive_field(self, name: str) -> dict[str, Any]:
        message = await self._receive(OPENING_BYTES)
        value = message.get(name) if isinstance(message, dict) else None
        if not isinstance(value, dict):
            raise GraderStoppedError(f"the grader's process did not begin with its {name}; leave its open files alone")
        return value

    async def _receive(self, most: int) -> Any:
        stream = self._process.stdout
        if stream is None:
            raise GraderStoppedError("the grader's process has no pipe; score again")
        try:
            (length,) = struct.unpack(">I", await stream.readexactly(4))
            if length > most:
                raise GraderStoppedError(f"the grader's process sent {length} bytes at once; leave its open files alone")
            body = await stream.readexactly(length)
            return await asyncio.to_thread(json.loads, body) if length > _PARSED_IN_THREAD_BYTES else json.loads(body)
        except asyncio.IncompleteReadError as error:
            raise GraderStoppedError(await self._ended()) from error
        except (ValueError, RecursionError) as error:
            raise GraderStoppedError("the grader's process sent no JSON; leave its open files alone") from error

    async def _ended(self) -> str:
        """How the process came to its end. Its pipe is closed, so it is on its way there, or else it is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING_SECONDS):
                await self._process.wait()
        code = await self.stop()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the grader's process died ({how}); it may use {MEMORY_BYTES >> 20} MiB and must not exit"

"""One grader process, as the service sees it. Nothing that it sends is trusted. `child.py` is the other end."""

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

FIRST_MESSAGE_BYTES = 1 << 20
RESULT_BYTES = 64 << 10
"""Size limit of a row's result; JSON becomes many times larger in memory."""
_PARSED_IN_THREAD_BYTES = 1 << 18
START_SECONDS = 10.0
_EXIT_SECONDS = 2.0
"""Until a process that has closed its pipe is killed."""
_KILL_SECONDS = 10.0
"""From SIGKILL to the end of the process, on a busy machine."""
_DROPPED_BYTES = 1 << 16

Row = tuple[str, str, str]
"""Output text, finish reason, item as JSON."""

_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from gradbus_reward.sandbox import child; del sys.path[0]; child.main()"
_ROOT = str(Path(__file__).resolve().parents[2])

_log = structlog.get_logger(__name__)


class GraderStoppedError(ScorerError):
    """The process died, hung or broke its protocol. It is gone, and the rows that it graded have no result."""


class GraderSourceError(ScorerError):
    """The user's source does not load."""


class GraderProcess:
    """A confined process that holds the loaded sources of one grader."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.layers = Confinement(seccomp=False, namespace=False, landlock=False)
        """Layers in force, as the child reports before it loads any user's code."""
        self.alive = True
        """False once it is killed or found dead."""

    @classmethod
    async def start(cls, sources: Mapping[str, str], *, allow_network: bool) -> GraderProcess:
        """Starts, confines and loads. Raises GraderSourceError for sources that fail, ScorerError if it cannot be confined."""
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
        """Process id of the child, which leads its own process group."""
        return self._process.pid

    async def grade(self, rows: Sequence[Row], seconds: float) -> list[Mapping[str, Any]]:
        """One result per row, in their order, as the child sent them. Kills the process and raises GraderStoppedError if it sends none."""
        try:
            async with asyncio.timeout(seconds):
                await self._send(rows)
                results = await self._receive(FIRST_MESSAGE_BYTES + len(rows) * RESULT_BYTES)
            if not isinstance(results, list) or len(results) != len(rows) or not all(isinstance(result, dict) for result in results):
                raise GraderStoppedError("the grader's process broke its protocol; do not use its open files")
        except TimeoutError as error:
            self.kill()
            raise GraderStoppedError(f"the grader was stopped after {seconds:.1f} s; bound its work per sample") from error
        except BaseException:
            # Also when the caller is cancelled, because the next call could not use the rest of this exchange.
            self.kill()
            raise
        return results

    def kill(self) -> None:
        """Kills the whole process group; `stop` waits for its end."""
        self.alive = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self) -> int:
        """Kills the process, waits for its end, and returns its exit code (negative: the signal)."""
        self.kill()
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                # asyncio reports the end of a process after that of its pipe, which it does not read while its buffer is full.
                while self._process.stdout is not None and await self._process.stdout.read(_DROPPED_BYTES):
                    pass
                return await self._process.wait()
        except TimeoutError as error:
            raise GraderStoppedError(f"grader process {self.pid} has not ended after SIGKILL; check the machine") from error

    async def _open(self, sources: Mapping[str, str], *, allow_network: bool) -> None:
        layers = Confinement(**await self._receive_field("layers"))
        if not layers.without_network and not allow_network:
            raise ScorerError(
                "on this kernel a grader can be denied neither sockets nor the network; run the reward service on Linux with"
                " seccomp or user namespaces, or set GRADBUS_ALLOW_UNISOLATED_NETWORK if you trust all users"
            )
        self.layers = layers
        _log.debug("grader_process_started", pid=self.pid, seccomp=layers.seccomp, namespace=layers.namespace, landlock=layers.landlock)
        await self._send({"sources": dict(sources)})
        try:
            faults = await self._receive_field("faults")
        except GraderStoppedError as error:
            raise GraderSourceError(f"the grader's source ended its process while it loaded: {error}") from error
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
        message = await self._receive(FIRST_MESSAGE_BYTES)
        value = message.get(name) if isinstance(message, dict) else None
        if not isinstance(value, dict):
            raise GraderStoppedError(f"the grader's process did not send its {name} first; do not use its open files")
        return value

    async def _receive(self, max_bytes: int) -> Any:
        stream = self._process.stdout
        if stream is None:
            raise GraderStoppedError("the grader's process has no pipe; score again")
        try:
            (length,) = struct.unpack(">I", await stream.readexactly(4))
            if length > max_bytes:
                raise GraderStoppedError(f"the grader's process sent {length} bytes at once; do not use its open files")
            body = await stream.readexactly(length)
            return await asyncio.to_thread(json.loads, body) if length > _PARSED_IN_THREAD_BYTES else json.loads(body)
        except asyncio.IncompleteReadError as error:
            raise GraderStoppedError(await self._ended()) from error
        except (ValueError, RecursionError) as error:
            raise GraderStoppedError("the grader's process sent no JSON; do not use its open files") from error

    async def _ended(self) -> str:
        """How the process ended. Its pipe is closed, so it ends by itself, or else is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        code = await self.stop()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the grader's process died ({how}); it may use {MEMORY_BYTES >> 20} MiB and must not exit"

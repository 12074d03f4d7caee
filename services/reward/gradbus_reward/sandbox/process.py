"""One grader process, as the service sees it. Nothing that it sends is trusted. `child.py` is the other end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from gradbus.errors import ScorerError
from gradbus.exit_status import describe_exit
from gradbus.niceness import USERS_NICENESS
from gradbus_reward.sandbox.bounds import is_bounded
from gradbus_reward.sandbox.confinement import MEMORY_BYTES, Confinement

LINE_BYTES = 256 << 10
"""Size limit of what a process sends at once; JSON becomes many times larger in memory."""
START_SECONDS = 30.0
"""Until a process is confined."""
LOAD_SECONDS = 10.0
"""Of the user's source."""
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

    def __init__(self, process: asyncio.subprocess.Process, parts: AbstractSet[str]) -> None:
        self._process = process
        self._parts = parts
        self.layers = Confinement(seccomp=False, namespace=False, landlock=False)
        """Layers in force, as the child reports before it loads any user's code."""
        self.alive = True
        """False once it is killed or found dead."""
        self._graded = 0
        """Rows graded since it began."""

    @classmethod
    async def start(cls, sources: Mapping[str, str], *, allow_network: bool) -> GraderProcess:
        """Starts, confines and loads. Raises GraderSourceError for sources that fail, ScorerError if it cannot be confined."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-B", "-c", _BOOT, _ROOT, str(USERS_NICENESS)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=LINE_BYTES,
                cwd="/",
                env={},
                process_group=0,  # no session: Linux may give each its own share of the processor, and niceness counts only within one
            )
        except OSError as error:
            raise ScorerError(f"no process could be started for the grader ({error}); raise the machine's limits on processes") from error
        grader = cls(process, sources.keys())
        try:
            await grader._confine(allow_network=allow_network)
            await grader._load(sources)
        except BaseException:
            await grader.stop()
            raise
        return grader

    @property
    def pid(self) -> int:
        """Process id of the child, which leads its own process group."""
        return self._process.pid

    async def grade(
        self, rows: Sequence[Row], seconds: float, graded: Callable[[Mapping[str, Any]], None], *, at_once: bool = False
    ) -> None:
        """Gives `graded` one result per row, in their order, as the child sent them.

        Kills the process and raises GraderStoppedError if a result does not come within `seconds` of the one before. `at_once`: the first
        row without a result is then the one that stopped it; otherwise one of the next rows, if they are quick, may be it.
        """
        loop = asyncio.get_running_loop()
        self._signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(seconds) as deadline:
                await self._send([at_once, rows])
                left = len(rows)
                while left:
                    results = await self._receive_results(left)
                    left -= len(results)
                    for result in results:
                        graded(result)
                    deadline.reschedule(loop.time() + seconds)
        except TimeoutError as error:
            self.kill()
            raise GraderStoppedError(f"the grader was stopped after {seconds:.1f} s; bound its work per sample") from error
        except BaseException:
            # Also when the caller is cancelled, because the next call could not use the rest of this exchange.
            self.kill()
            raise
        self._pause()

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
                while self._process.stdout is not None and await self._process.stdout.read(_DROPPED_BYTES):
                    pass
                return await self._process.wait()
        except TimeoutError as error:
            raise GraderStoppedError(f"grader process {self.pid} has not ended after SIGKILL; check the machine") from error

    def _pause(self) -> None:
        """Until the next batch the process computes nothing, whatever timers and signal handlers the user's code has set."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _confine(self, *, allow_network: bool) -> None:
        """Waits until the child is confined. No user's code runs before, so nothing that fails here is the user's fault."""
        try:
            async with asyncio.timeout(START_SECONDS):
                layers = Confinement(**await self._receive_field("layers"))
        except TimeoutError as error:
            raise ScorerError(
                f"the grader's process did not start in {START_SECONDS:.0f} s; the machine is too busy: give the reward service more CPU"
            ) from error
        if not layers.without_network and not allow_network:
            raise ScorerError(
                "on this kernel a grader can be denied neither sockets nor the network; run the reward service on Linux with"
                " seccomp or user namespaces, or set GRADBUS_ALLOW_UNISOLATED_NETWORK if you trust all users"
            )
        self.layers = layers
        _log.debug("grader_process_started", pid=self.pid, **asdict(layers))

    async def _load(self, sources: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await self._send({"sources": dict(sources)})
                faults = await self._receive_field("faults")
        except TimeoutError as error:
            raise GraderSourceError(f"the grader's source did not load in {LOAD_SECONDS:.0f} s; do less at its top level") from error
        except GraderStoppedError as error:
            raise GraderSourceError(f"the grader's source ended its process while it loaded: {error}") from error
        if faults:
            raise GraderSourceError("; ".join(f"grader {part!r} does not load: {reason}" for part, reason in faults.items()))
        self._pause()

    async def _send(self, message: object) -> None:
        stream = self._process.stdin
        body = json.dumps(message).encode()
        if stream is None:
            raise GraderStoppedError("the grader's process has no pipe; score again")
        try:
            stream.write(body + b"\n")
            await stream.drain()
        except ConnectionError as error:
            raise GraderStoppedError(await self._ended()) from error

    async def _receive_field(self, name: str) -> dict[str, Any]:
        message = await self._receive()
        value = message.get(name) if isinstance(message, dict) else None
        if not isinstance(value, dict):
            raise GraderStoppedError(f"the grader's process did not send its {name} first; do not use its open files")
        return value

    async def _receive_results(self, most: int) -> Sequence[Mapping[str, Any]]:
        """The results of the next rows, at least one and at most `most`."""
        match await self._receive():
            case [self._graded, [_, *_] as results] if len(results) <= most and all(is_bounded(result, self._parts) for result in results):
                self._graded += len(results)
                return list(results)
        raise GraderStoppedError("the grader's process broke its protocol; do not use its open files")

    async def _receive(self) -> Any:
        stream = self._process.stdout
        if stream is None:
            raise GraderStoppedError("the grader's process has no pipe; score again")
        try:
            return json.loads(await stream.readuntil(b"\n"))
        except asyncio.IncompleteReadError as error:
            raise GraderStoppedError(await self._ended()) from error
        except asyncio.LimitOverrunError as error:
            reason = f"the grader's process sent more than {LINE_BYTES >> 10} KiB at once; do not use its open files"
            raise GraderStoppedError(reason) from error
        except (ValueError, RecursionError) as error:
            raise GraderStoppedError("the grader's process sent no JSON; do not use its open files") from error

    async def _ended(self) -> str:
        """How the process ended. Its pipe is closed, so it ends by itself, or else is killed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._process.wait()
        code = await self.stop()
        return f"the grader's process died ({describe_exit(code)}); it may use {MEMORY_BYTES >> 20} MiB and must not exit"

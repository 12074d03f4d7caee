"""The fork server as a service sees it: started at its first use, started again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Final

from gradbus.aio.tasks import cancel_and_wait, run_to_end
from gradbus.telemetry import get_logger
from gradbus.tokenizer.errors import TokenizerProcessError, described
from gradbus.tokenizer.frames import CONTROL_BYTES, Frame

_log = get_logger(__name__)
_MODULE: Final = "gradbus.tokenizer.fork_server"
_START_SECONDS: Final = 120.0
"""On a busy machine; alone it takes two."""
_REPLY_SECONDS: Final = 60.0
"""A reply takes 20 ms; a server that is late is ended with all its processes."""
_EXIT_SECONDS: Final = 2.0
_ENDING: Final = "this service is ending; send the request again in a moment"
_ROOM: Final = "free memory or raise the limit on processes"
_PASSED_ON: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # no thread may run when the server forks
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclass(frozen=True, slots=True)
class _Server:
    process: subprocess.Popen[bytes]
    control: socket.socket
    ready: asyncio.Task[None]


class ForkServer:
    """Forks tokenizer processes. One service has one; its tokenizers end with it, and all end with the service.

    The first fork starts the server, which takes 65 MB and two seconds of the processor, unless `start` did so before.
    """

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._closed = False
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Starts the server ahead of its first fork, so that nobody waits for it. Raises TokenizerProcessError if it cannot start."""
        async with self._lock:
            await self._running()

    async def fork(self) -> tuple[int, socket.socket]:
        """Pid and socket of a new process. Raises TokenizerProcessError if there is none to be had."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                reply = await self._ask({"fork": True}, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        if "pid" not in reply:
            ours.close()
            raise TokenizerProcessError(f"no process for a tokenizer ({reply.get('error')}); {_ROOM}")
        return int(reply["pid"]), ours

    async def end(self, pid: int) -> int | None:
        """Kills a process that was forked, unless it has ended, and returns its exit code (negative: a signal).

        None if it is no longer known, because it ended with its server.
        """
        if self._server is None or self._closed:
            return None
        status = (await self._ask({"end": pid})).get("status")
        return None if status is None else int(status)

    async def close(self) -> None:
        """Ends the server and its processes for good."""
        self._closed = True
        if self._server is not None:
            self._server.ready.cancel()
            _shut(self._server.control)  # a request under way ends at once, and with it its turn
        async with self._lock:
            await self._end_server()

    async def _end_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            _shut(server.control)
            await cancel_and_wait(server.ready)
            await asyncio.to_thread(_wait_or_kill, server.process)
            server.control.close()  # last: while the event loop waits for it, its number must not become another file's

    async def _ask(self, request: dict[str, Any], *fds: int) -> dict[str, Any]:
        """The reply, from a second server if the first one is lost."""
        async with self._lock:
            try:
                server = await self._running()
                return await run_to_end(_exchange(server.control, request, fds))
            except (OSError, ValueError, TimeoutError):
                await run_to_end(self._end_server())
            server = await self._running()
            try:
                return await run_to_end(_exchange(server.control, request, fds))
            except (OSError, ValueError, TimeoutError) as error:
                await run_to_end(self._end_server())
                raise TokenizerProcessError(
                    f"the tokenizers' fork server is lost, twice ({described(error)}); check this machine's memory"
                ) from error

    async def _running(self) -> _Server:
        if self._closed:
            raise TokenizerProcessError(_ENDING)
        if self._server is not None and (self._server.process.poll() is not None or self._server.ready.cancelled()):
            await run_to_end(self._end_server())
        if self._server is None:
            self._server = _launched()
        server = self._server
        if not server.ready.done():
            await asyncio.wait({server.ready})  # it goes on starting when the run that waits for it is cancelled
        if server.ready.cancelled():
            raise TokenizerProcessError(_ENDING)
        if (error := server.ready.exception()) is not None:
            _log.error("tokenizers_unavailable", error=str(error))
            await run_to_end(self._end_server())
            raise error
        return server


def _launched() -> _Server:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno()), str(os.getpid())],
                env={**environment, **_ENVIRONMENT},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
    except OSError as error:
        ours.close()
        raise TokenizerProcessError(f"the tokenizers' fork server does not start ({described(error)}); {_ROOM}") from error
    return _Server(process, ours, asyncio.create_task(_started(ours), name="fork server starts"))


async def _started(control: socket.socket) -> None:
    try:
        async with asyncio.timeout(_START_SECONDS):
            reply = await _reply(control)
    except (OSError, ValueError, TimeoutError) as error:
        raise TokenizerProcessError(f"the tokenizers' fork server does not start ({described(error)}); see that Python works") from error
    if "ready" not in reply:
        raise TokenizerProcessError(
            f"the tokenizers' fork server does not start ({reply.get('error')}); install this service's extra of the gradbus package"
        )


async def _exchange(control: socket.socket, request: dict[str, Any], fds: tuple[int, ...]) -> dict[str, Any]:
    async with asyncio.timeout(_REPLY_SECONDS):
        socket.send_fds(control, [Frame(request).to_bytes()], fds)
        return await _reply(control)


async def _reply(control: socket.socket) -> dict[str, Any]:
    message = await asyncio.get_running_loop().sock_recv(control, CONTROL_BYTES)
    if not message:
        raise ConnectionError("it ended")
    return Frame.from_bytes(message).header


def _shut(control: socket.socket) -> None:
    """Ends the connection, and by it the server."""
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""The supervisor's side of a fork server: services that it forks, with the interface of asyncio's processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradbus.telemetry import get_logger

_log = get_logger(__name__)
MESSAGE_BYTES: Final = 1 << 16
"""The longest message between fork server and supervisor."""
_REPLY_SECONDS: Final = 90.0
"""On a busy machine the imports take half a minute."""


class ForkedProcess:
    """A service that the fork server has forked."""

    stdout = None
    """It writes to its log itself."""

    def __init__(self, pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self._ended = ended

    async def wait(self) -> int:
        """The exit code, or -signal, once the process has ended."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Sends SIGTERM. Raises ProcessLookupError if it has ended."""
        os.kill(self.pid, signal.SIGTERM)


class ForkServer:
    """Starts a fork server at the first fork, and again after its end, with which all that it forked ends."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._modules = modules
        """What its services share."""
        self._environment = environment
        self._log = log
        self._starting = asyncio.Lock()
        self._ids = itertools.count()
        self._control: socket.socket | None = None
        self._process: Process | None = None
        self._asked: dict[int, asyncio.Future[ForkedProcess]] = {}
        self._running: dict[int, asyncio.Future[int]] = {}
        """By pid."""

    async def fork(self, module: str, environment: Mapping[str, str], log: int) -> ForkedProcess:
        """A process that runs `module` and writes to `log`. Raises OSError if the server cannot fork or does not answer."""
        async with self._starting:
            if self._control is None:
                self._control = await self._start()
            control = self._control
        number, variables = next(self._ids), os.memfd_create("environment")
        answer: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            os.write(variables, json.dumps(dict(environment)).encode())
            os.lseek(variables, 0, os.SEEK_SET)
            socket.send_fds(control, [json.dumps({"id": number, "module": module}).encode()], [log, variables])
            async with asyncio.timeout(_REPLY_SECONDS):
                return await answer
        except TimeoutError:
            await self.close()
            raise OSError(f"the fork server did not answer within {_REPLY_SECONDS:.0f} s") from None
        finally:
            os.close(variables)
            self._asked.pop(number, None)

    async def close(self) -> None:
        """Ends the fork server, and with it what it forked."""
        self._lose()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        command = [sys.executable, "-m", "gradbus.embedded.forks.server", str(fd), str(os.getpid()), *self._modules]
        environment = dict(self._environment)
        with theirs, self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=DEVNULL, stdout=log, stderr=log, pass_fds=(fd,), start_new_session=True
            )
        asyncio.get_running_loop().add_reader(ours, self._read, ours)
        return ours

    def _read(self, control: socket.socket) -> None:
        try:
            message = control.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            self._take(json.loads(message))
        elif control is self._control:
            services = len(self._running)
            self._lose()
            with contextlib.suppress(OSError, ValueError):  # the message may be lost, and supervision goes on
                _log.warning("fork_server_ended", services=services, log=str(self._log))

    def _take(self, said: Mapping[str, Any]) -> None:
        if "status" in said:
            if ended := self._running.pop(said["pid"], None):
                ended.set_result(said["status"])
        elif "pid" in said:
            self._running[said["pid"]] = ended = asyncio.get_running_loop().create_future()
            self._answer(said["id"], ForkedProcess(said["pid"], ended))
        else:
            self._answer(said["id"], OSError(said["error"]))

    def _answer(self, number: int, answer: ForkedProcess | OSError) -> None:
        asked = self._asked.pop(number, None)
        if asked is None or asked.done():
            return
        if isinstance(answer, OSError):
            asked.set_exception(answer)
        else:
            asked.set_result(answer)

    def _lose(self) -> None:
        """The server is gone. Its children have SIGKILL, or will have it in a moment."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        for number in tuple(self._asked):
            self._answer(number, OSError("the fork server ended"))
        for ended in self._running.values():
            ended.set_result(-signal.SIGKILL)
        self._running.clear()

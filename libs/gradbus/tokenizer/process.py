"""One tokenizer process, as a service sees it: a call has a deadline, and a process that misses it is killed.

The deadline is in seconds of the processor, which the kernel counts: how busy the machine is decides nothing. A process that
does not reply and does not compute either is killed after a longer time.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from gradbus.aio.tasks import run_to_end
from gradbus.exit_status import describe_exit
from gradbus.tokenizer.frames import Frame, receive_frame
from gradbus.tokenizer.launcher import ForkServer
from gradbus.tokenizer.limits import MEMORY_BYTES

_WALL_SECONDS: Final = 30.0
_WALL_FACTOR: Final = 4
"""A call may take _WALL_SECONDS by the clock, and this many for each second of the processor."""


class ProcessLostError(Exception):
    """The process is gone without a reply."""

    def __init__(self, cause: str, file: str, *, too_much_work: bool = False) -> None:
        self.file = file
        """The file of the model that it worked on, if it said so."""
        self.too_much_work = too_much_work
        """Another process would be lost in the same way."""
        super().__init__(cause)


class TokenizerProcess:
    """A limited process for one model folder. It serves one call at a time."""

    def __init__(self, server: ForkServer, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._pid = pid
        self._reader, self._writer = reader, writer
        self.alive = True
        """False once it is ended or found dead."""

    @classmethod
    async def start(cls, server: ForkServer) -> TokenizerProcess:
        """A new process that has loaded nothing. Raises TokenizerProcessError if this machine has none to give."""
        pid, connection = await server.fork()
        return cls(server, pid, *await asyncio.open_unix_connection(sock=connection))

    async def call(self, request: Frame, seconds: float) -> Frame:
        """The reply. Raises ProcessLostError if the process ends, or is killed because it computes for longer than `seconds`."""
        working_on, wall_seconds = "", _WALL_SECONDS + _WALL_FACTOR * seconds
        try:
            async with asyncio.timeout(wall_seconds):
                request.header["seconds"] = seconds
                self._writer.write(request.to_bytes())
                await self._writer.drain()
                while "working_on" in (reply := await receive_frame(self._reader)).header:
                    working_on = str(reply.header["working_on"])
                return reply
        except TimeoutError:
            await self.end()
            raise ProcessLostError(f"it did not reply for {wall_seconds:g} s", working_on) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self.end()
            if status == -signal.SIGXCPU:
                cause = f"it took more than {seconds:g} s of the processor"
                raise ProcessLostError(cause, working_on, too_much_work=True) from None
            raise ProcessLostError(_how(status), working_on) from None
        except ValueError as error:
            await self.end()
            raise ProcessLostError(f"its process broke the protocol ({error})", working_on) from error
        except BaseException:
            # Also when the caller is cancelled, because the next call could not use the rest of this exchange.
            await self.end()
            raise

    async def end(self) -> int | None:
        """Kills the process and waits for its end. Its exit code (negative: a signal), or None if it is not known."""
        self.alive = False
        self._writer.transport.abort()
        return await run_to_end(self._server.end(self._pid))


def _how(status: int | None) -> str:
    how = "with its server" if status is None else describe_exit(status)
    return f"its process ended ({how}); it may use {MEMORY_BYTES >> 20} MiB"

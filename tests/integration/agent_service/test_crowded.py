"""A service that has few places left for connections."""

import asyncio
import contextlib
import signal

import pytest

from gradbus.rpc import open_channel
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

from .conftest import Agent, Worker, start_service

FILES = 256 + 64
RETRY = {"x-stainless-retry-count": "1"}


@pytest.fixture
def crowded(tmp_path, free_port):
    started = start_service(tmp_path, free_port, files=FILES)
    yield started
    started.process.send_signal(signal.SIGTERM)
    started.process.wait(60)


async def test_a_retry_of_a_request_that_found_no_place_gets_no_other_ones_answer(crowded, http):
    channel = open_channel(f"127.0.0.1:{crowded.port}", "of-the-test")
    worker = Worker(EnvironmentServiceStub(channel), run_id="run")
    opening = asyncio.create_task(worker.open())
    claimed = await http.post(f"{crowded.url}/v1/agent/claim", json={"run": "run"}, headers={"authorization": f"Bearer {crowded.key}"})
    agent = Agent(http, claimed.json()[0])
    first = asyncio.create_task(agent.chat("a"))
    worker.session = (await opening).session
    host, _, port = crowded.url.removeprefix("http://").partition(":")
    async with contextlib.AsyncExitStack() as places:
        for _ in range(60):
            _, writer = await asyncio.open_connection(host, int(port))
            places.callback(writer.close)
        refused = await agent.chat("a")
        assert (refused.status_code, refused.headers["retry-after"], refused.json()["error"]["code"]) == (503, "1", "too_many_connections")
    await asyncio.sleep(0.3)
    retried = asyncio.create_task(agent.chat("a", RETRY))
    await asyncio.sleep(0.3)
    assert [one.content for one in (await worker.step("b")).conversation.messages] == ["a"]
    last = asyncio.create_task(worker.step("c"))
    assert [(await one).json()["choices"][0]["message"]["content"] for one in (first, retried)] == ["b", "c"]
    last.cancel()
    await channel.close()

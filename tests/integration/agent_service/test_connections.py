"""The agents' port: with a certificate HTTPS alone, with the SDKs' own clients; and with few places left for connections."""

import asyncio
import contextlib
import signal

import httpx2
import pytest
from lazy_import import lazy_import

from gradbus.client.answers import trusting
from gradbus.rpc import open_channel
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

from .conftest import TOKEN, Agent, Worker, start_service

openai = lazy_import("openai")

FILES = 256 + 64
RETRY = {"x-stainless-retry-count": "1"}


@pytest.fixture
def secure(tmp_path, free_port, issue):
    """The service with few connections; the authority that agents trust."""
    folder = issue("localhost", "127.0.0.1")
    started = start_service(tmp_path, free_port, files=300, GRADBUS_HTTPS_DIR=str(folder), GRADBUS_PUBLIC_URL="")
    started.url = started.url.replace("http://", "https://")
    yield started, trusting("https:", folder / "ca.crt")
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(60) == 0, (tmp_path / "agent.log").read_text()
    assert "crashed" not in (tmp_path / "agent.log").read_text()


async def claimed(service, context, run):
    async with httpx2.AsyncClient(verify=context, trust_env=False, timeout=30) as http:
        answer = await http.post(f"{service.url}/v1/agent/claim", json={"run": run}, headers={"authorization": f"Bearer {service.key}"})
        (offer,) = answer.json()
        return offer


async def test_an_agent_plays_over_https_alone(secure):
    service, context = secure
    async with open_channel(f"127.0.0.1:{service.port}", TOKEN) as channel:
        worker = Worker(EnvironmentServiceStub(channel), run_id="secure")
        opening = asyncio.create_task(worker.open())
        offer = await claimed(service, context, "secure")
        assert offer["base_url"] == f"{service.url}/v1"
        http = openai.DefaultAsyncHttpxClient(verify=context, trust_env=False)
        chat = openai.AsyncOpenAI(base_url=offer["base_url"], api_key=offer["api_key"], http_client=http, max_retries=0)
        asked = asyncio.create_task(chat.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}]))
        await opening
        stepping = asyncio.create_task(worker.step("b"))
        assert (await asked).choices[0].message.content == "b"
        stepping.cancel()
        await chat.close()
        async with httpx2.AsyncClient(trust_env=False) as plain:
            with pytest.raises(httpx2.HTTPError):
                await plain.get(f"{service.url.replace('https', 'http')}/v1/models")
            with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
                await plain.get(f"{service.url}/v1/models")


async def test_clients_that_never_shake_hands_take_no_place_for_ever(secure):
    service, context = secure
    port = int(service.url.rpartition(":")[2])
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(120)]
    async with asyncio.timeout(60):
        assert [await reader.read() for reader, _ in idle] == [b""] * 120, "within the time of a head"
    async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
        assert (await http.get(f"{service.url}/v1/models")).status_code == 401
    for _, writer in idle:
        writer.close()


def test_a_certificate_that_cannot_be_read_ends_the_start(tmp_path, free_port):
    started = start_service(tmp_path, free_port, GRADBUS_HTTPS_DIR=str(tmp_path / "none"))
    assert started.process.wait(60) != 0
    assert "cannot read" in (tmp_path / "agent.log").read_text()


@pytest.fixture
def crowded(tmp_path, free_port):
    started = start_service(tmp_path, free_port, files=FILES)
    yield started
    started.process.send_signal(signal.SIGTERM)
    started.process.wait(60)


async def test_a_retry_of_a_request_that_found_no_place_gets_no_other_ones_answer(crowded, http):
    channel = open_channel(f"127.0.0.1:{crowded.port}", TOKEN)
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

"""Episodes that are posted to an agent at an address."""

import asyncio

import pytest

from gradbus.v1 import environment_service_pb2 as pb

OK, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_ERROR


class Receiver:
    """A server that takes episodes: (status, body) of each answer."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.offers = asyncio.Queue()
        self.head = ""
        """Of the newest request."""
        self.seconds = 0.0
        """Before an answer."""

    async def serve(self, reader, writer):
        self.head = head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(next(line for line in head.splitlines() if line.startswith("content-length")).partition(":")[2])
        body = await reader.readexactly(length)
        status, content = self.answers.pop(0) if self.answers else (200, b"{}")
        await asyncio.sleep(self.seconds)
        if not status:
            writer.close()
            return
        if status == 200:
            await self.offers.put(body)
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nlocation: /x\r\nconnection: close\r\n\r\n%b" % (status, len(content), content)
        )
        await writer.drain()
        writer.close()


@pytest.fixture
async def receive():
    """Starts a receiver with these answers, and gives it with its URL."""
    servers = []

    async def started(*answers):
        receiver = Receiver(*answers)
        server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
        servers.append(server)
        return receiver, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/play"

    yield started
    for server in servers:
        server.close()


async def test_an_episode_is_posted_and_played(worker, receive, agent_of):
    receiver, url = await receive()
    trace = "0af7651916cd43dd8448eb211c80319c"
    worker.traceparent = f"00-{trace}-b7ad6b7169203331-01"
    worker.section = {"agent": url, "step_seconds": 20}
    opening = asyncio.create_task(worker.open())
    agent = agent_of(await receiver.offers.get())
    assert (agent.offer["episode"], agent.offer["item"]) == ("train.0.0.0", {"question": "2+2"})
    assert agent.offer["traceparent"] == worker.traceparent
    assert f"traceparent: 00-{trace}-" in receiver.head
    asked = asyncio.create_task(agent.chat("hello"))
    opened = await opening
    assert opened.conversation.messages[0].content == "hello"
    stepping = asyncio.create_task(worker.step("4"))
    assert (await asked).status_code == 200
    await agent.end(reward=1)
    assert (await stepping).done


async def test_an_agent_without_room_is_asked_again_with_another_key(worker, receive, agent_of):
    receiver, url = await receive((503, b""), (429, b""), (200, b""))
    worker.section = {"agent": url, "step_seconds": 20}
    for _ in range(2):
        away = await worker.open()
        assert (away.status, away.is_away) == (ERROR, True)
        assert "it is asked again" in away.reason
    opening = asyncio.create_task(worker.open())
    agent = agent_of(await receiver.offers.get())
    assert (await agent.beat()).status_code == 200
    opening.cancel()


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (((302, b""),), "redirects are not followed"),
        (((500, b"broken"),), "responded with 500"),
        (((200, b"x" * 70_000),), "sent more than"),
    ],
)
async def test_an_agent_that_answers_wrongly_is_an_error(worker, receive, answers, said):
    _, url = await receive(*answers)
    worker.section = {"agent": url, "step_seconds": 20}
    failed = await worker.open()
    assert (failed.status, failed.is_away, said in failed.reason) == (ERROR, False, True)


async def test_an_agent_that_is_not_there_is_waited_for(worker, free_port):
    worker.section = {"agent": f"http://127.0.0.1:{free_port()}/play"}
    away = await worker.open()
    assert (away.status, away.is_away) == (ERROR, True)
    assert "check that it runs" in away.reason


async def test_an_agent_that_ends_the_connection_gets_the_episode_once_more(worker, receive, agent_of):
    receiver, url = await receive((0, b""))
    worker.section = {"agent": url, "step_seconds": 20}
    away = await worker.open()
    assert (away.status, away.is_away) == (ERROR, True)
    assert "check that it runs" in away.reason
    opening = asyncio.create_task(worker.open())
    assert (await agent_of(await receiver.offers.get()).beat()).status_code == 200
    opening.cancel()


async def test_the_lease_begins_when_the_agent_has_answered_the_post(worker, receive, agent_of):
    receiver, url = await receive()
    receiver.seconds = 1.5
    worker.section = {"agent": url, "step_seconds": 1.0}
    opening = asyncio.create_task(worker.open())
    agent = agent_of(await receiver.offers.get())
    await asyncio.sleep(0.3)
    asked = asyncio.create_task(agent.chat("hello"))
    assert (await opening).status == OK
    asked.cancel()


async def test_an_address_that_no_agent_may_have_is_an_error(worker):
    worker.section = {"agent": "http://169.254.169.254/latest"}
    failed = await worker.open()
    assert (failed.status, failed.is_away) == (ERROR, False)
    assert "which no agent may use" in failed.reason


async def test_it_describes_an_agent_and_refuses_other_environments(stub):
    import grpc

    described = await stub.Describe(pb.DescribeRequest(run_id="run", environment_json='{"agent": "pull"}'), timeout=10)
    assert (described.name, list(described.tools), described.determinism) == ("agent", [], pb.DETERMINISM_RECORDED)
    for section in ('{"source": "x"}', "{"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Describe(pb.DescribeRequest(run_id="run", environment_json=section), timeout=10)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

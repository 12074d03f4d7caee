"""OpenEnv's WebSocket: by a server of ours that says what OpenEnv's says, and by OpenEnv's own package where there is one."""

import asyncio
import json
import os
import threading

import grpc
import pytest

from gradbus.v1 import environment_service_pb2 as pb

OK, INVALID, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_INVALID, pb.ENVIRONMENT_STATUS_ERROR
OPENENV = os.environ.get("GRADBUS_TEST_OPENENV", "")
"""A Python with openenv-core."""
ACTION = {"properties": {"guess": {"type": "integer"}, "metadata": {"type": "object"}}, "required": ["guess"], "type": "object"}


def observation(sign, reward=None, done=False):
    return {"type": "observation", "data": {"observation": {"sign": sign}, "reward": reward, "done": done}}


def error(code, message="it failed", **more):
    return {"type": "error", "data": {"message": message, "code": code, **more}}


class FakeServer:
    """Sends `answers` to the messages of a connection that follow its reset, and keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self.answers = []
        self.first = observation("?")
        self.closed = threading.Event()
        self.most, self.sessions, self.begun = 1 << 30, 0, 0
        """Sessions that it may have, that it has, and that it had."""

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            body = json.dumps({"action": ACTION, "observation": {}, "state": {}}).encode()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(body)).encode())]})
            await send({"type": "http.response.body", "body": body})
            return
        assert (scope["path"], (await receive())["type"]) == ("/ws", "websocket.connect")
        await send({"type": "websocket.accept"})
        if self.sessions >= self.most:  # as theirs: at once, and it reads nothing
            await send({"type": "websocket.send", "text": json.dumps(error("CAPACITY_REACHED", f"{self.most} of {self.most} sessions"))})
            await send({"type": "websocket.close"})
            return
        self.sessions += 1
        try:
            await self.serve(receive, send)
        finally:
            self.sessions -= 1

    async def serve(self, receive, send):
        while (event := await receive())["type"] == "websocket.receive":
            message = json.loads(event["text"])
            self.asked.append(message)
            self.begun += message["type"] == "reset"
            if message["type"] == "close":
                self.closed.set()
                await send({"type": "websocket.close"})
                return
            said = self.answer(message)
            if isinstance(said, float):
                await asyncio.sleep(said)
                said = observation("late")
            await send(
                {
                    "type": "websocket.send",
                    **({"text": said if isinstance(said, str) else json.dumps(said)} if said != b"" else {"bytes": b"x"}),
                }
            )

    def answer(self, message):
        if message["type"] == "reset":
            return self.first
        if message["data"].get("type") == "list_tools":
            return error("VALIDATION_ERROR", "Invalid message")
        return self.answers.pop(0) if self.answers else observation("=", 1.0, done=True)


@pytest.fixture
def fake():
    return FakeServer()


@pytest.fixture
def world(episode, http_server, fake):
    url = http_server(fake)
    return episode({"service": f"openenv+{url.replace('http', 'ws')}", "step_seconds": 8.0}, run_id=url)


async def test_a_plain_environment_has_one_tool_and_its_observations_are_results(world, fake):
    described = await world.describe()
    assert (described.determinism, [one.name for one in described.tools]) == (pb.DETERMINISM_RECORDED, ["act"])
    assert list(json.loads(described.tools[0].parameters_json)["properties"]) == ["guess"]
    world.seed = 7 + (1 << 40)
    opened = await world.open("train.0.0.1")
    assert [(one.role, one.content) for one in opened.messages] == [("user", '{"sign":"?"}')]
    fake.answers = [observation("<", -0.5), observation("=", True, done=True)]
    answer = await world.step(0, "Hm.", ("act", {"guess": 3}), ("act", {"guess": 5}), ("act", {"guess": 6}))
    assert (answer.status, answer.reward, answer.done) == (OK, 0.5, True)
    assert [one.content for one in answer.messages[:2]] == ['{"sign":"<"}', '{"sign":"="}']
    assert json.loads(answer.messages[2].content)["error"] == "episode_over"
    await world.close()
    assert await asyncio.to_thread(fake.closed.wait, 10), "it is sent and not waited for"
    assert fake.asked[-4:] == [
        {"type": "reset", "data": {"seed": 7, "episode_id": "train.0.0.1"}},
        {"type": "step", "data": {"guess": 3}},
        {"type": "step", "data": {"guess": 5}},
        {"type": "close"},
    ]


async def test_what_the_policy_got_wrong_is_told_to_it(world, fake):
    await world.open()
    fake.answers = [error("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["guess"], "msg": "Field required"}])]
    answer = await world.step(0, "", ("act", {}), ("act", "{"), ("fly", {}))
    assert [json.loads(one.content)["error"] for one in answer.messages] == ["invalid_arguments", "invalid_arguments", "unknown_tool"]
    assert "guess: Field required" in answer.messages[0].content


async def test_code_that_raises_is_an_error_and_the_same_again_invalid(world, fake):
    found = []
    for attempt in range(2):
        await world.open("faulty", attempt)
        fake.answers = [error("EXECUTION_ERROR", "no such table")]
        answer = await world.step(0, "", ("act", {"guess": 1}))
        found.append(answer.status)
        assert "no such table" in answer.reason
    assert found == [ERROR, INVALID]


BROKEN = [error("CAPACITY_REACHED"), error("SESSION_ERROR"), "{", b"", "[]", {"type": "won"}, observation("=", 1e9), "x" * (9 << 20), 30.0]


@pytest.mark.parametrize("said", BROKEN, ids=lambda said: str(said)[:40])
async def test_whatever_else_is_an_error_and_the_connection_is_not_used_again(world, fake, said):
    await world.open()
    fake.answers = [said]
    answer = await world.step(0, "", ("act", {"guess": 1}))
    assert (answer.status, answer.HasField("reward"), bool(answer.reason)) == (ERROR, False, True)
    again = await world.step(0, "", ("act", {"guess": 1}))
    assert (again.status, "open the episode again" in again.reason) == (ERROR, True)
    assert (await world.open(attempt=1)).status == OK


async def played(world, name):
    """One episode of one step, opened again as long as it is told to wait. Returns how often it was."""
    waits = 0
    while (opened := await world.open(name)).is_away:
        assert (opened.status, "it is waited for" in opened.reason) == (ERROR, True)
        waits += 1
        await asyncio.sleep(0.05)
    assert opened.status == OK, opened.reason
    answer = await world.step(0, "", ("act", {"guess": 5}))
    assert (answer.status, answer.HasField("reward")) == (OK, True), answer
    await world.close()
    world.session = ""
    return waits


async def test_a_server_of_one_session_plays_one_episode_after_the_other_and_none_fails(episode, http_server, fake):
    url, fake.most = http_server(fake).replace("http", "ws"), 1
    worlds = [episode({"service": f"openenv+{url}"}, run_id=url) for _ in range(8)]
    await worlds[0].describe()
    waits = await asyncio.gather(*(played(world, f"train.0.0.{n}") for n, world in enumerate(worlds)))
    assert fake.begun == len(worlds), "each began once"
    assert sum(waits) > 0


async def test_two_hundred_and_fifty_six_episodes_have_a_connection_each(episode, http_server, fake):
    url = http_server(fake).replace("http", "ws")
    worlds = [episode({"service": f"openenv+{url}"}, run_id=url) for _ in range(256)]
    opened = await asyncio.gather(*(world.open(f"train.0.0.{n}") for n, world in enumerate(worlds)))
    assert {one.status for one in opened} == {OK}
    assert fake.sessions == len(worlds)
    answers = await asyncio.gather(*(world.step(0, "", ("act", {"guess": 5})) for world in worlds))
    assert [(one.status, one.reward) for one in answers] == [(OK, 1.0)] * len(worlds)


async def test_an_address_that_is_not_allowed_is_refused(episode):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await episode({"service": "openenv+ws://169.254.169.254:80"}, run_id="metadata").describe()
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
def openenv(start_package):
    """Starts an environment on OpenEnv's own package."""
    return lambda kind: f"openenv+ws://{start_package(OPENENV, 'openenv_server.py', kind)}"


@pytest.mark.skipif(not OPENENV, reason="GRADBUS_TEST_OPENENV names no Python with openenv-core")
async def test_a_plain_environment_of_openenvs_own_package(episode, openenv):
    world = episode({"service": openenv("plain"), "calls_per_turn": 128}, run_id="plain", seed=3)
    described = await world.describe()
    assert [(one.name, one.description) for one in described.tools] == [("act", "A guess at the number.")]
    assert [one.content for one in (await world.open()).messages] == ['{"sign":"?"}']
    low = await world.step(0, "", ("act", {"guess": -1}), ("act", {"guess": "many"}))
    assert (low.status, low.reward, low.messages[0].content) == (OK, pytest.approx(-0.1), '{"sign":"<"}')
    assert json.loads(low.messages[1].content)["error"] == "invalid_arguments"
    failed = await world.step(1, "", ("act", {"guess": 13}))
    assert (failed.status, "an unlucky number" in failed.reason) == (ERROR, True)
    await world.open(attempt=1)
    found = await world.step(0, "", *[("act", {"guess": guess}) for guess in range(100) if guess != 13])
    assert (found.status, found.done) == (OK, True)


@pytest.mark.skipif(not OPENENV, reason="GRADBUS_TEST_OPENENV names no Python with openenv-core")
async def test_more_episodes_than_openenvs_own_server_has_sessions_are_all_played(episode, openenv):
    service = openenv("plain")
    worlds = [episode({"service": service}, run_id="crowd") for _ in range(40)]  # it has 8
    await worlds[0].describe()
    assert sum(await asyncio.gather(*(played(world, f"train.0.0.{n}") for n, world in enumerate(worlds)))) > 0


@pytest.mark.skipif(not OPENENV, reason="GRADBUS_TEST_OPENENV names no Python with openenv-core")
async def test_tools_of_openenvs_own_package(episode, openenv):
    world = episode({"service": openenv("mcp")}, run_id="mcp")
    assert [(one.name, one.description) for one in (await world.describe()).tools] == [("add", "Adds two numbers."), ("fail", "Fails.")]
    assert list((await world.open()).messages) == []
    answer = await world.step(0, "", ("add", {"a": 2, "b": 40}), ("fail", {"text": "on purpose"}), ("nothing", {}))
    assert (answer.status, answer.messages[0].content) == (OK, "42")
    assert [json.loads(one.content)["error"] for one in answer.messages[1:]] == ["tool_failed", "unknown_tool"]

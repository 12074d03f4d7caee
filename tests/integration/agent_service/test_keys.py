"""Keys that are missing, wrong, old or another one's: a typed end that says what to do; and an episode that is played loses nothing."""

import asyncio
import signal

import pytest

from gradbus.access.api_keys import new_api_key, write_api_keys
from gradbus.rpc import open_channel
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

from .conftest import TOKEN, Agent, Game, Worker, start_service

SAID = [{"role": "user", "content": "a"}]
TURNS = {
    "chat/completions": {"messages": SAID},
    "responses": {"input": SAID},
    "messages": {"messages": SAID, "max_tokens": 8},
}
ROUTES = {**TURNS, "messages/count_tokens": {"messages": SAID}, "models": None, "models/any": None}
"""With a body; None: it is a GET."""
OWN = ("end", "beat", "restart", "")
"""Routes of one episode."""


def code_of(answer):
    """In OpenAI's words or Anthropic's."""
    error = answer.json()["error"]
    assert len(error["message"]) > 20
    return answer.status_code, error.get("code") or error["type"]


async def sent(agent, path, body, headers):
    if body is None:
        return await agent.http.get(agent.url(path), headers=headers)
    return await agent.http.post(agent.url(path), json=body, headers=headers)


async def own_routes(agent, headers):
    """The answers of the routes of the agent's episode."""
    path = f"agent/episodes/{agent.offer['episode']}"
    posts = [await agent.http.post(agent.url(f"{path}/{name}"), json={"attempt": 0, "reward": 1}, headers=headers) for name in OWN[:-1]]
    return [*posts, await agent.http.get(agent.url(path), headers=headers)]


async def plays_on(game):
    """The episode goes on as if nobody else had come."""
    await game.ask("hello")
    assert (await game.draw("b")).status_code == 200
    assert (await game.agent.end(reward=1)).status_code == 200
    ended = await game.answering
    assert (ended.done, ended.reward) == (True, 1.0)
    shown = await game.agent.show()
    assert [shown[name] for name in ("turns", "replayed", "refused", "withdrawn")] == [1, 0, 0, 0]


@pytest.fixture(
    params=["none", "wrong", "empty", "scheme", "api key", "reader", "odd", "long", "cut", "in the path"],
)
def no_key(request, service, game):
    """Headers with the key of no episode."""
    key = game.agent.offer["api_key"]
    return {
        "none": {},
        "wrong": {"authorization": "Bearer wrong"},
        "empty": {"authorization": "Bearer", "x-api-key": ""},
        "scheme": {"authorization": f"Basic {key}"},
        "api key": {"authorization": f"Bearer {service.key}"},
        "reader": {"x-api-key": service.reader},
        "odd": {"x-api-key": "\xe9\xff'\"%00".encode("latin-1")},
        "long": {"x-api-key": "k" * 8000},
        "cut": {"x-api-key": key[:-1]},
        "in the path": {"authorization": f"Bearer /e/{key}/v1"},
    }[request.param]


async def test_a_request_without_the_key_of_an_episode_is_refused_on_every_route(game, no_key):
    for path, body in ROUTES.items():
        answer = await sent(game.agent, path, body, no_key)
        assert answer.status_code == 401, path
        assert code_of(answer)[1] in ("invalid_api_key", "authentication_error")
    assert {code_of(answer) for answer in await own_routes(game.agent, no_key)} == {(401, "invalid_api_key")}
    streamed = await sent(game.agent, "chat/completions", TURNS["chat/completions"] | {"stream": True}, no_key)
    assert streamed.status_code == 401, "with a status, and no stream"
    await plays_on(game)


async def test_the_key_of_another_episode_asks_in_that_one_and_reaches_nothing_of_this_one(begin_game):
    game, other = await begin_game(), await begin_game()
    theirs = other.agent.headers
    other.agent.offer["episode"] = game.agent.offer["episode"] = "train.0.0.0"
    game.agent.offer["episode"] = "train.0.0.1"
    assert {code_of(answer) for answer in await own_routes(game.agent, theirs)} == {(403, "forbidden")}
    game.agent.offer["episode"] = "train.0.0.0"
    asked = asyncio.create_task(game.agent.http.post(game.agent.url("chat/completions"), json=TURNS["chat/completions"], headers=theirs))
    other.worker.session = (await other.opening).session
    other.answering = asyncio.create_task(other.worker.step("theirs"))
    assert (await asked).json()["choices"][0]["message"]["content"] == "theirs"
    assert not game.opening.done()
    await plays_on(game)


async def test_a_key_claims_nothing_and_no_key_of_the_gateway_plays(game, service, http):
    claim = {"run": game.worker.run_id}
    for headers in (game.agent.headers, {}, {"x-api-key": "wrong"}):
        assert code_of(await http.post(f"{service.url}/v1/agent/claim", json=claim, headers=headers)) == (401, "invalid_api_key")
    in_path = f"{service.url}/e/{game.agent.offer['api_key']}/v1/agent/claim"
    assert code_of(await http.post(in_path, json=claim)) == (401, "invalid_api_key")
    await plays_on(game)


@pytest.mark.parametrize("how", ["ended", "lease", "attempt", "closed"])
async def test_the_key_of_an_episode_that_is_over_is_told_why_on_every_route(begin_game, how):
    game = await begin_game(**({"step_seconds": 1} if how == "lease" else {}))
    await game.ask("hello")
    if how == "lease":
        assert (await game.draw("b")).status_code == 200
        assert "did nothing for 1 s" in (await game.answering).reason
    elif how == "attempt":
        newer = asyncio.create_task(game.worker.open(attempt=1))
        assert code_of(await game.asked) == (410, "episode_over")
    elif how == "closed":
        await game.worker.close()
        assert code_of(await game.asked) == (410, "episode_over")
    else:
        assert (await game.draw("b")).status_code == 200
        assert (await game.agent.end(reward=0.25)).status_code == 200
    reason = {"ended": "its agent ended", "lease": "did nothing for", "attempt": "in another attempt", "closed": "closed it"}[how]
    for path, body in TURNS.items():
        answer = await sent(game.agent, path, body, game.agent.headers)
        assert answer.status_code == 410, path
        assert reason in answer.json()["error"]["message"]
        assert "claim another one" in answer.json()["error"]["message"]
    ends, beats, restarts, shown = await own_routes(game.agent, game.agent.headers)
    assert {code_of(answer) for answer in (ends, beats, restarts)} == {(410, "episode_over")}
    assert reason in shown.json()["over"]
    if how == "attempt":
        newer.cancel()


async def test_a_key_of_the_gateway_that_is_revoked_claims_no_more_and_what_it_claimed_is_played_on(tmp_path, free_port, http):
    started = start_service(tmp_path, free_port)
    channel = open_channel(f"127.0.0.1:{started.port}", TOKEN)
    worker = Worker(EnvironmentServiceStub(channel), run_id="run")
    claim = {"json": {"run": "run", "wait_seconds": 1}, "headers": {"authorization": f"Bearer {started.key}"}}
    opening = asyncio.create_task(worker.open())
    (offer,) = (await http.post(f"{started.url}/v1/agent/claim", **claim)).json()
    _, kept = new_api_key("other", ["runs:write"])
    write_api_keys(tmp_path / "api-keys.json", [kept])
    async with asyncio.timeout(20):
        while (answer := await http.post(f"{started.url}/v1/agent/claim", **claim)).status_code == 200:
            assert answer.json() == []
    assert code_of(answer) == (401, "invalid_api_key")
    await plays_on(Game(worker, Agent(http, offer), opening))
    await worker.close()
    await channel.close()
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(60) == 0


async def test_a_service_that_was_killed_knows_no_key_and_says_what_may_have_happened(tmp_path, free_port, http):
    """Its episodes are played in another attempt, which agents claim anew."""
    first = start_service(tmp_path, free_port)
    channel = open_channel(f"127.0.0.1:{first.port}", TOKEN)
    worker = Worker(EnvironmentServiceStub(channel), run_id="run")
    game = Game(worker, None, asyncio.create_task(worker.open()))
    headers = {"authorization": f"Bearer {first.key}"}
    (offer,) = (await http.post(f"{first.url}/v1/agent/claim", json={"run": "run"}, headers=headers)).json()
    game.agent = Agent(http, offer)
    await game.ask("hello")
    assert (await game.draw("b")).status_code == 200
    game.answering.cancel()
    first.process.kill()
    first.process.wait(60)
    await channel.close()
    second = start_service(tmp_path, free_port)
    game.agent.offer["base_url"] = f"{second.url}/v1"
    answer = await game.agent.chat("more")
    assert code_of(answer) == (401, "invalid_api_key")
    assert "was started again" in answer.json()["error"]["message"]
    assert code_of(await game.agent.end(reward=1)) == (401, "invalid_api_key")
    channel = open_channel(f"127.0.0.1:{second.port}", TOKEN)
    worker.stub = EnvironmentServiceStub(channel)
    assert (await worker.step("c")).status == pb.ENVIRONMENT_STATUS_UNKNOWN_SESSION
    opening = asyncio.create_task(worker.open(attempt=1))
    headers = {"authorization": f"Bearer {second.key}"}
    (offer,) = (await http.post(f"{second.url}/v1/agent/claim", json={"run": "run"}, headers=headers)).json()
    assert offer["attempt"] == 1
    await plays_on(Game(worker, Agent(http, offer), opening))
    await worker.close()
    await channel.close()
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(60) == 0

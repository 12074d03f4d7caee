"""An agent goes away while a turn is drawn for it: the draw is withdrawn, the turn never was, and the episode goes on if it asks again."""

import asyncio
import dataclasses
import time

import pytest

from gradbus.v1 import environment_service_pb2 as pb

from .conftest import Game

OK, ERROR = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_ERROR
SAID = [{"role": "user", "content": "a"}]
ROUTES = {
    "chat/completions": {"messages": SAID},
    "responses": {"input": SAID},
    "messages": {"messages": SAID, "max_tokens": 100},
}
"""With a body of each interface."""


class Drawing(Game):
    """A game whose worker has a call open, by which it is told what nobody waits for."""

    def __init__(self, *begun):
        super().__init__(*begun)
        self.told = asyncio.create_task(self.worker.keep_alive())

    def asks(self, path="chat/completions", **fields):
        """A request of the agent, which may be cancelled: its connection ends then."""
        body = {"model": "any", **ROUTES[path], **fields}
        return asyncio.create_task(self.agent.http.post(self.agent.url(path), json=body, headers=self.agent.headers))

    async def goes(self, asking):
        """The agent goes away; the draws that the worker is told."""
        asking.cancel()
        went = time.monotonic()
        told = await asyncio.wait_for(self.told, 10)
        assert time.monotonic() - went < 5
        self.told = asyncio.create_task(self.worker.keep_alive(*told))
        return told


@pytest.fixture
async def drawing(begin):
    """Begins an episode of a run of its own."""
    games = []

    async def begun(**section):
        games.append(Drawing(*await begin("worker", **section)))
        return games[-1]

    yield begun
    for one in games:
        one.told.cancel()
        one.answering.cancel()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
async def test_a_draw_is_withdrawn_when_its_agent_goes_away_and_asked_anew_when_it_comes_back(drawing, path, stream):
    game = await drawing()
    asking = game.asks(path, stream=stream)
    reply = await game.opening
    game.worker.session = reply.session
    assert await game.goes(asking) == [(reply.session, 0)]
    game.answering = asyncio.create_task(game.worker.withdraw())
    await asyncio.sleep(0.2)
    assert not game.answering.done(), "nobody asks"
    again = game.asks(path, stream=stream)
    asked = await game.answering
    assert asked.status == OK
    assert asked.conversation == reply.conversation, "as if it was asked for the first time"
    game.answering = asyncio.create_task(game.worker.step("b"))
    answer = await again
    assert answer.status_code == 200
    assert '"b"' in answer.text
    shown = await game.agent.show()
    assert [shown[name] for name in ("turns", "forked", "replayed", "withdrawn")] == [1, 1, 0, 1]


async def test_another_request_may_come_after_it_and_goes_on_from_the_turns_that_there_are(drawing):
    game = await drawing()
    await game.ask(SAID)
    await game.draw("b")
    history = [*SAID, {"role": "assistant", "content": "b"}]
    asking = asyncio.create_task(game.agent.chat([*history, {"role": "user", "content": "c"}]))
    assert [one.content for one in (await game.answering).messages] == ["c"]
    assert await game.goes(asking) == [(game.worker.session, 1)]
    game.answering = asyncio.create_task(game.worker.withdraw())
    other = await game.ask([*history, {"role": "user", "content": "d"}])
    assert ([one.content for one in other.messages], other.HasField("after_turn")) == (["d"], False)
    assert (await game.draw("e")).json()["gradbus"] | {"versions": None} == {
        "episode": "train.0.0.0",
        "attempt": 0,
        "turn": 1,
        "outcome": "extend",
        "versions": None,
        "overridden_parameters": [],
        "stop": None,
    }


async def test_a_client_that_asks_again_at_once_waits_for_the_same_draw(drawing):
    """As the SDKs do when a connection is lost, or takes longer than they wait."""
    game = await drawing()
    asking = game.asks()
    game.worker.session = (await game.opening).session
    for _ in range(3):
        asking.cancel()
        await asyncio.sleep(0.7)  # so a while after the first one left, nobody waits, and not for so long
        asking = asyncio.create_task(game.agent.chat("a", {"x-stainless-retry-count": "1"}))
        await asyncio.sleep(0.3)
    await asyncio.sleep(2)
    assert not game.told.done()
    assert (await game.agent.show())["replayed"] == 3
    game.answering = asyncio.create_task(game.worker.step("b"))
    assert (await asking).json()["choices"][0]["message"]["content"] == "b"


async def test_a_client_that_comes_back_before_the_draw_has_ended_is_drawn_for_next(drawing):
    game = await drawing()
    asking = game.asks()
    reply = await game.opening
    game.worker.session = reply.session
    assert await game.goes(asking) == [(reply.session, 0)]
    again = game.asks()
    await asyncio.sleep(0.3)
    assert (await game.worker.withdraw()).conversation == reply.conversation
    game.answering = asyncio.create_task(game.worker.step("b"))
    assert (await again).json()["gradbus"]["turn"] == 0


async def test_a_turn_that_was_drawn_by_then_is_a_turn(drawing):
    game = await drawing()
    asking = game.asks()
    reply = await game.opening
    game.worker.session = reply.session
    assert await game.goes(asking) == [(reply.session, 0)]
    game.answering = asyncio.create_task(game.worker.step("b"))
    await asyncio.sleep(0.3)
    assert (await game.agent.chat("a")).json()["choices"][0]["message"]["content"] == "b", "it is kept for who asks again"
    shown = await game.agent.show()
    assert (shown["turns"], shown["withdrawn"]) == (1, 0)


async def test_an_agent_that_does_not_come_back_loses_its_episode_and_one_that_ends_it_does_not(drawing):
    game = await drawing(step_seconds=1)
    asking = game.asks()
    game.worker.session = (await game.opening).session
    await game.goes(asking)
    lost = await game.worker.withdraw()
    assert lost.status == ERROR
    assert "did nothing for 1 s; let it send a beat while it works" in lost.reason
    over = await game.agent.chat("a")
    assert (over.status_code, over.json()["error"]["code"]) == (410, "episode_over")
    game = await drawing()
    asking = game.asks()
    game.worker.session = (await game.opening).session
    await game.goes(asking)
    game.answering = asyncio.create_task(game.worker.withdraw())
    assert (await game.agent.end(reward=0.5)).status_code == 200
    ended = await game.answering
    assert (ended.status, ended.done, ended.reward) == (OK, True, 0.5)


async def test_a_draw_that_nobody_waits_for_is_withdrawn_though_the_agent_has_ended_its_episode(drawing):
    game = await drawing()
    asking = game.asks()
    game.worker.session = (await game.opening).session
    asking.cancel()
    assert (await game.agent.end(reward=0.5)).status_code == 200, "before the worker is told"
    assert await asyncio.wait_for(game.told, 10) == [(game.worker.session, 0)]
    ended = await game.worker.withdraw()
    assert (ended.status, ended.done, ended.reward) == (OK, True, 0.5)


async def test_an_untrained_turn_is_withdrawn_too(drawing):
    game = await drawing()
    asking = asyncio.create_task(game.agent.chat("a", {"x-gradbus-train": "false"}))
    reply = await game.opening
    game.worker.session = reply.session
    assert reply.conversation.untrained
    assert await game.goes(asking) == [(reply.session, 0)]
    game.answering = asyncio.create_task(game.worker.withdraw())
    assert not (await game.ask("b")).conversation.untrained
    assert (await game.draw("c")).json()["gradbus"]["turn"] == 0


async def test_steps_out_of_order_are_refused(drawing):
    game = await drawing()
    asking = game.asks()
    game.worker.session = (await game.opening).session
    game.worker.withdrawn = 1
    assert "is not the next one of this session" in (await game.worker.withdraw()).reason
    game.worker.withdrawn = 0
    game.answering = asyncio.create_task(game.worker.step("b"))
    assert (await asking).status_code == 200


async def test_a_withdrawal_is_told_until_the_draw_has_ended(drawing):
    """The answer that says it may be lost."""
    game = await drawing()
    asking = game.asks()
    session = game.worker.session = (await game.opening).session
    told = await game.goes(asking)
    assert told == [(session, 0)]
    assert await asyncio.wait_for(game.worker.keep_alive(), 10) == told, "for a caller that did not get it"
    assert await asyncio.wait_for(game.worker.keep_alive(("another", 0), (session, 1)), 10) == told
    await asyncio.sleep(0.3)
    assert not game.told.done(), "a caller that knows it is not told again"
    game.answering = asyncio.create_task(game.worker.withdraw())
    again = game.asks()
    await game.answering
    lost = asyncio.create_task(game.worker.keep_alive())
    await asyncio.sleep(0.3)
    assert not lost.done(), "the draw of before is over"
    assert await game.goes(again) == [(session, 1)], "the same request, which is drawn for anew"
    assert await asyncio.wait_for(lost, 10) == [(session, 1)]


async def test_who_goes_on_in_the_session_is_told_what_was_withdrawn_meanwhile(drawing):
    game = await drawing()
    asking = game.asks()
    session = (await game.opening).session
    next_worker = dataclasses.replace(game.worker, name=f"{game.worker.name}-next")
    told = asyncio.create_task(next_worker.keep_alive())
    assert await game.goes(asking) == [(session, 0)]
    await asyncio.sleep(0.3)
    assert not told.done()
    assert (await next_worker.open(resume=True)).session == session
    assert await asyncio.wait_for(told, 10) == [(session, 0)]
    asked = asyncio.create_task(next_worker.withdraw())
    again = game.asks()
    assert (await asked).conversation.messages[0].content == "a"
    game.answering = asyncio.create_task(next_worker.step("b"))
    assert (await again).status_code == 200

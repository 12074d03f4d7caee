"""The requests of an episode: order, retries, refusals."""

import pytest

from gradbus_agent.contract import ChatMessage, ChatRequest, PolicyTurn, RefusalError, Tokens
from gradbus_agent.episodes.asks import MAX_IN_FLIGHT, Asks, Mark

REQUEST = ChatRequest((ChatMessage("user", "a"),))


def turn(number):
    message = ChatMessage("assistant", f"{number}")
    return PolicyTurn("train.0.0.0", 0, number, message, "stop", "fork", Tokens(), "run", 0)


def mark(body="a", **fields):
    return Mark(body.encode(), **fields)


@pytest.fixture
async def asks():
    return Asks()


async def test_requests_are_drawn_in_their_order(asks):
    first, second = asks.add(REQUEST, mark("a")), asks.add(REQUEST, mark("b"))
    assert (asks.take(), asks.drawing) == (first, first)
    asks.settle(turn(0))
    assert (first.answer.result().number, second.answer.done()) == (0, False)
    assert asks.take() is second
    assert asks.take() is None


async def test_a_request_is_a_retry_if_it_is_marked_or_the_first_one_was_lost(asks):
    ask = asks.add(REQUEST, mark())
    assert asks.known(mark()) is None, "an equal one is another request"
    assert asks.known(mark(is_retry=True)) is ask
    assert asks.known(mark("b", is_retry=True)) is None
    asks.take()
    asks.leave(ask, is_delivered=False)
    assert asks.known(mark()) is ask, "its client is gone, and it is being drawn"
    asks.settle(turn(0))
    assert asks.known(mark()) is ask
    ask.waiting += 1
    assert asks.known(mark()) is None, "somebody waits for it"
    asks.leave(ask, is_delivered=True)
    assert asks.known(mark()) is None
    assert asks.known(mark(is_retry=True)) is ask


async def test_of_equal_ones_a_retry_is_the_lost_one_then_the_newest(asks):
    older, newer = asks.add(REQUEST, mark()), asks.add(REQUEST, mark())
    assert asks.known(mark(is_retry=True)) is newer
    asks.take()
    asks.leave(older, is_delivered=False)
    assert asks.known(mark(is_retry=True)) is older


async def test_one_that_nobody_waits_for_is_not_drawn(asks):
    ask = asks.add(REQUEST, mark())
    ask.waiting += 1
    asks.leave(ask, is_delivered=False)
    assert len(asks.queue) == 1
    asks.leave(ask, is_delivered=False)
    assert asks.take() is None


async def test_an_idempotency_key_is_one_request_for_ever(asks):
    ask = asks.add(REQUEST, mark(key="k"))
    asks.take()
    asks.settle(turn(0))
    asks.leave(ask, is_delivered=True)
    assert asks.known(mark(key="k")) is ask
    with pytest.raises(RefusalError, match="a new request needs a new key"):
        asks.known(mark("b", key="k"))


async def test_too_many_are_refused_until_one_is_answered(asks):
    for n in range(MAX_IN_FLIGHT):
        asks.add(REQUEST, mark(f"{n}"))
    asks.take()
    with pytest.raises(RefusalError) as refused:
        asks.add(REQUEST, mark("more"))
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    asks.settle(turn(0))
    asks.add(REQUEST, mark("more"))


async def test_refusals_reach_those_who_wait(asks):
    drawn, queued = asks.add(REQUEST, mark("a")), asks.add(REQUEST, mark("b"))
    asks.take()
    error = RefusalError(410, "episode_over", "over")
    asks.refuse_queue(error)
    asks.refuse_drawing(error)
    assert (drawn.answer.exception(), queued.answer.exception()) == (error, error)
    assert asks.take() is None
    asks.settle(turn(0))

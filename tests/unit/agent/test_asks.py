"""The requests of an episode: order, retries, refusals."""

import pytest

from gradbus_agent.contract import ChatMessage, ChatRequest, PolicyTurn, RefusalError, Tokens
from gradbus_agent.episodes.asks import MAX_IN_FLIGHT, MAX_JOINED, Asks, Mark
from gradbus_agent.episodes.memory import ByteBudget
from gradbus_agent.matching import Question

REQUEST = Question.of(ChatRequest((ChatMessage("user", "a"),)))


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


async def test_a_draw_that_nobody_waits_for_is_forgotten_and_one_that_somebody_does_is_the_next(asks):
    budget = asks.budget = ByteBudget(10)
    abandoned, other = asks.add(REQUEST, mark(size=6)), asks.add(REQUEST, mark("b", size=4))
    asks.leave(other, is_delivered=False)
    assert not asks.is_abandoned(other), "it is dropped"
    asks.take()
    assert not asks.is_abandoned(abandoned)
    asks.leave(abandoned, is_delivered=False)
    assert asks.is_abandoned(abandoned)
    asks.withdraw()
    assert (asks.drawing, asks.take(), asks.known(mark())) == (None, None, None)
    assert budget.take(10)
    budget.give_back(10)
    returned, later = asks.add(REQUEST, mark(size=6)), asks.add(REQUEST, mark("b", size=4))
    asks.take()
    asks.leave(returned, is_delivered=False)
    asks.join(returned)
    assert not asks.is_abandoned(returned)
    asks.withdraw()
    assert [asks.take(), asks.take()] == [returned, later], "its client came back before the draw was withdrawn"
    asks.withdraw()
    asks.withdraw()
    assert asks.drawing is None


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


async def test_of_several_equal_ones_a_retry_is_a_lost_one_and_else_one_of_its_own(asks):
    older, newer = asks.add(REQUEST, mark()), asks.add(REQUEST, mark())
    assert asks.known(mark(is_retry=True)) is None, "it could be either's"
    asks.take()
    asks.leave(older, is_delivered=False)
    assert asks.known(mark(is_retry=True)) is older
    older.waiting += 1
    asks.take()
    asks.leave(newer, is_delivered=False)
    assert asks.known(mark(is_retry=True)) is newer


async def test_a_retry_of_a_refused_request_is_drawn_anew(asks):
    accepted = [asks.add(REQUEST, mark()) for _ in range(MAX_IN_FLIGHT)]
    for _ in range(2):
        with pytest.raises(RefusalError):
            asks.add(REQUEST, mark())
    while asks.take():
        asks.settle(turn(0))
    for ask in accepted:
        asks.leave(ask, is_delivered=True)
    for ask in accepted[1:]:
        del asks.answered[ask]
    retry = mark(is_retry=True)
    assert [asks.known(retry) for _ in range(3)] == [None, None, accepted[0]], "two were refused"


async def test_a_retry_that_is_refused_again_is_still_drawn_anew(asks):
    first = asks.add(REQUEST, mark())
    for n in range(1, MAX_IN_FLIGHT):
        asks.add(REQUEST, mark(f"{n}"))
    for is_retry in (False, True, True):
        assert asks.known(mark(is_retry=is_retry)) is None
        with pytest.raises(RefusalError):
            asks.add(REQUEST, mark(is_retry=is_retry))
    assert asks.known(mark(is_retry=True)) is None
    assert asks.known(mark(is_retry=True)) is first


async def test_so_many_connections_wait_for_one_answer(asks):
    ask = asks.add(REQUEST, mark())
    for _ in range(MAX_JOINED - 1):
        asks.join(ask)
    with pytest.raises(RefusalError) as refused:
        asks.join(ask)
    assert (refused.value.status, refused.value.retry_after) == (429, 1)


async def test_an_answered_request_is_forgotten_but_for_its_answer(asks):
    ask = asks.add(REQUEST, mark())
    asks.take()
    asks.settle(turn(0))
    assert ask.question.request.messages == ()
    assert asks.known(mark(is_retry=True)).answer.result().number == 0


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
    assert asks.known(mark(key="other", is_retry=True)) is None
    assert asks.known(mark(is_retry=True)) is None, "its retry would have the key"
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


async def test_all_requests_of_a_run_that_wait_have_a_budget():
    budget = ByteBudget(100)
    asks, others = Asks(budget), Asks(budget)
    first, second = asks.add(REQUEST, mark("a", size=40)), others.add(REQUEST, mark("a", size=40))
    with pytest.raises(RefusalError) as refused:
        asks.add(REQUEST, mark("b", size=40))
    assert (refused.value.status, refused.value.code, refused.value.retry_after) == (429, "too_many_bytes", 5)
    others.leave(second, is_delivered=False)
    third = asks.add(REQUEST, mark("b", size=40))
    assert asks.take() is first
    asks.settle(turn(0))
    fourth = asks.add(REQUEST, mark("c", size=60))
    assert asks.take() is third
    asks.refuse_drawing(RefusalError(410, "over", "over"))
    asks.refuse_queue(RefusalError(410, "over", "over"))
    assert fourth.answer.exception().status == 410
    assert budget.take(100)

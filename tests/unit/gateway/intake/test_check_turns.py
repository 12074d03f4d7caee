"""Who waits for a check, and for how long."""

import asyncio

import pytest

from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.intake.check_turns import CheckTurns


@pytest.fixture
def new_check():
    """A check in a caller's turn: it notes that it runs, and ends when `done` is set."""

    def new(turns, running, done):
        async def check(caller):
            async with turns.turn(caller):
                running.append(caller)
                await done.wait()

        return lambda caller: asyncio.create_task(check(caller))

    return new


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_caller_with_many_submissions_has_one_turn_at_a_time(new_check):
    running, done = [], asyncio.Event()
    check = new_check(CheckTurns(2, 60.0), running, done)
    tasks = [check("a") for _ in range(5)]
    await settle()
    tasks.append(check("b"))
    await settle()
    assert running == ["a", "b"]
    done.set()
    await asyncio.gather(*tasks)
    assert sorted(running) == ["a"] * 5 + ["b"]


async def test_a_wait_ends_with_the_problem_busy_and_a_check_may_take_longer(new_check):
    running, done = [], asyncio.Event()
    turns = CheckTurns(2, 0.05)
    check = new_check(turns, running, done)
    tasks = [check("a"), check("b")]
    await settle()
    for caller in ("a", "c"):
        with pytest.raises(ProblemError, match="send this one again") as refused:
            await check(caller)
        assert (refused.value.status, refused.value.kind, refused.value.retry_after) == (503, "busy", 30)
    done.set()
    await asyncio.gather(*tasks)
    assert running == ["a", "b"]


async def test_a_cancelled_wait_takes_no_turn(new_check):
    running, done = [], asyncio.Event()
    turns = CheckTurns(1, 60.0)
    check = new_check(turns, running, done)
    tasks = [check("a")]
    await settle()
    waiting = [check("a"), check("b")]
    await settle()
    for task in waiting:
        task.cancel()
    await settle()
    done.set()
    await asyncio.gather(*tasks, check("a"), check("b"))
    assert running == ["a", "a", "b"]

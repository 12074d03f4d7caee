"""A caller that is gone, such as a rollout worker that died: its move is made to its end, once, and the next caller has the answer."""

import asyncio
import json

import pytest

from gradbus_environment.contract import Move, Opening

SLOW = json.dumps(
    {
        "source": "import time\nclass Environment:\n    def reset(self, item, seed):\n        self.n = 0\n\n"
        "    def step(self, text):\n        self.n += 1\n        time.sleep(0.5)\n        return {'message': str(self.n)}\n"
    }
)
SECONDS = 30.0


@pytest.fixture
async def run(registry):
    async with registry().use("run", SLOW) as opened:
        yield opened


@pytest.fixture
async def session(run):
    name, answer = await run.open(Opening("run", "train.0.0.0", 0, "{}", 1), SECONDS)
    assert answer.status == "ok"
    return name


def move(turn, text="on"):
    return Move(turn, {"text": text, "calls": [], "finish": "stop"}, is_last=False, end_reason="")


async def left(run, session, turn):
    """A caller that gives up while its move is made."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await run.step(session, move(turn), SECONDS)


def said(answer):
    assert answer.status == "ok", answer
    return [message.content for message in answer.messages]


async def test_the_next_caller_has_the_answer_of_the_move_that_was_under_way(run, session):
    await left(run, session, 0)
    assert said(await run.step(session, move(0), SECONDS)) == ["1"]
    assert said(await run.step(session, move(1), SECONDS)) == ["2"]


async def test_an_answer_is_kept_though_nobody_waited_for_it(run, session):
    await left(run, session, 0)
    await asyncio.sleep(1.0)
    answer = await asyncio.wait_for(run.step(session, move(0), SECONDS), 0.3)
    assert said(answer) == ["1"]


async def test_callers_that_come_and_go_make_one_move(run, session):
    for _ in range(3):
        await left(run, session, 0)
    answers = await asyncio.gather(*(run.step(session, move(0), SECONDS) for _ in range(3)))
    assert [said(answer) for answer in answers] == [["1"]] * 3


async def test_another_move_in_place_of_the_one_under_way_is_refused(run, session):
    await left(run, session, 0)
    answer = await run.step(session, move(0, "another"), SECONDS)
    assert (answer.status, "must equal the first" in answer.reason) == ("error", True)


async def test_the_end_of_the_run_ends_a_move_that_nobody_waits_for(run, session):
    await left(run, session, 0)
    await asyncio.wait_for(run.end(), 10.0)
    assert not [task for task in asyncio.all_tasks() if "OpenRun._step" in repr(task)]

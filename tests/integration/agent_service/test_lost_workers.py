"""A rollout worker dies while it draws: its agent's request waits for the next worker, which has the turns from the journal."""

import asyncio
import contextlib
import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradbus.v1 import environment_service_pb2 as pb

from .conftest import TOKEN, Agent, Game, Worker

OK, UNKNOWN = pb.ENVIRONMENT_STATUS_OK, pb.ENVIRONMENT_STATUS_UNKNOWN_SESSION
SCRIPT = Path(__file__).parent / "drawing_worker.py"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@dataclasses.dataclass
class Drawing:
    """An agent whose worker, a process, draws for its newest request."""

    process: asyncio.subprocess.Process
    agent: Agent
    next: Worker
    asked: asyncio.Task
    answers: list

    async def says(self):
        return (await asyncio.wait_for(self.process.stdout.readline(), 20)).decode().strip()

    async def dies(self):
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@pytest.fixture
def player():
    """Empty: the episode has a journal."""
    return ""


@pytest.fixture
async def drawing(service, stub, http, claim, request, player):
    """After two turns of one conversation, and one of another that the third request begins."""
    run_id = f"run-of-{request.node.name[:40]}"
    command = [sys.executable, str(SCRIPT), str(service.port), TOKEN, run_id, "2", player]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    (offer,) = (await claim(run_id)).json()
    agent, answers, messages = Agent(http, offer), [], [user("a")]
    worker = Worker(stub, run_id=run_id, player="")
    asked = asyncio.create_task(agent.chat(messages))
    found = Drawing(process, agent, worker, asked, answers)
    assert await found.says() == "opened"
    for number in range(2):
        answered = asyncio.create_task(found.says())
        answers.append((await found.asked).json())
        messages = [user("b")] if number else [*messages, assistant("turn 0"), user("more")]
        found.asked = asyncio.create_task(agent.chat(messages))
        assert await answered == "answered"
    yield found
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    await worker.close()


async def resumed(worker, turns):
    """The next worker has so many turns from the journal, and goes on in the session."""
    answer = await worker.open(resume=True)
    worker.turn = turns - 1
    return answer


async def test_the_next_worker_goes_on_and_draws_for_the_request_that_waits(drawing):
    await drawing.dies()
    await asyncio.sleep(5)
    assert not drawing.asked.done(), "the request waits for the next worker"
    worker = drawing.next
    assert (await resumed(worker, 2)).status == OK
    game = Game(worker, drawing.agent, asyncio.create_task(worker.step("turn 2")))
    third = (await asyncio.wait_for(drawing.asked, 20)).json()
    assert [one["gradbus"]["turn"] for one in (*drawing.answers, third)] == [0, 1, 2]
    assert third["choices"][0]["message"]["content"] == "turn 2"
    reply = await game.ask([user("a"), assistant("turn 0"), user("more"), assistant("turn 1"), user("!")])
    assert ([one.content for one in reply.messages], reply.after_turn) == (["!"], 1), "the histories of its turns are kept"
    await game.draw("turn 3")
    assert (await drawing.agent.end(reward=1)).status_code == 200
    over = await game.answering
    assert (over.done, over.reward) == (True, 1.0)


async def test_an_agent_that_ends_meanwhile_loses_nothing(drawing):
    drawing.asked.cancel()
    await drawing.dies()
    assert (await drawing.agent.end(reward=0.5)).status_code == 200
    await asyncio.sleep(5)
    await resumed(drawing.next, 2)
    over = await drawing.next.step("turn 2")
    assert (over.done, over.reward) == (True, 0.5)


@pytest.mark.parametrize("player", ["of its own"])
async def test_without_a_journal_the_episode_is_closed_within_seconds(drawing):
    await drawing.dies()
    answer = await asyncio.wait_for(drawing.asked, 20)
    assert (answer.status_code, "its rollout worker is gone" in answer.text) == (410, True)
    assert (await resumed(drawing.next, 2)).status == UNKNOWN


async def test_a_worker_that_stands_still_is_not_taken_for_dead(drawing):
    drawing.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(6)
    drawing.process.send_signal(signal.SIGCONT)
    drawing.process.send_signal(signal.SIGUSR1)
    assert (await asyncio.wait_for(drawing.asked, 20)).json()["choices"][0]["message"]["content"] == "turn 2"
    assert (await drawing.agent.end(reward=1)).status_code == 200
    assert await drawing.says() == "ENVIRONMENT_STATUS_OK"

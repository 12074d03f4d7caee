"""A rollout worker dies while it draws: its agent's request waits for the next worker, which is told all that was drawn."""

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


@pytest.fixture
async def drawing(service, stub, http, claim, request):
    """After two turns of one conversation, and one of another that the third request begins."""
    run_id = f"run-of-{request.node.name[:40]}"
    command = [sys.executable, str(SCRIPT), str(service.port), TOKEN, run_id, "2"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    (offer,) = (await claim(run_id)).json()
    agent, answers, messages = Agent(http, offer), [], [user("a")]
    worker = Worker(stub, run_id=run_id, player="next")
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


def recorded(reply):
    """What the reply says was drawn before, as text; None if the worker has to draw."""
    return reply.recorded.text if reply.HasField("recorded") else None


async def again(worker, reply):
    """Tells a recorded turn as the worker that takes it over does."""
    worker.turn += 1
    request = pb.StepRequest(run_id=worker.run_id, session=worker.session, turn=worker.turn, assistant=reply.recorded)
    return await worker.stub.Step(request, timeout=20)


async def lost(drawing):
    """The reply to the next worker's opening, once the service knows that the other one is gone."""
    drawing.process.send_signal(signal.SIGKILL)
    await drawing.process.wait()
    await asyncio.sleep(5)
    assert not drawing.asked.done(), "the request waits for the next worker"
    return await drawing.next.open()


async def test_the_next_worker_is_told_what_was_drawn_and_draws_for_the_request_that_waits(drawing):
    reply = await lost(drawing)
    worker = drawing.next
    assert (recorded(reply), reply.conversation.messages[0].content) == ("turn 0", "a")
    assert reply.recorded.drawn.version_first == 4
    reply = await again(worker, reply)
    assert (recorded(reply), [one.content for one in reply.messages]) == ("turn 1", ["more"])
    reply = await again(worker, reply)
    assert (recorded(reply), reply.conversation.messages[0].content) == (None, "b")
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
    drawing.process.send_signal(signal.SIGKILL)
    await drawing.process.wait()
    assert (await drawing.agent.end(reward=0.5)).status_code == 200
    await asyncio.sleep(5)
    worker, reply = drawing.next, await drawing.next.open()
    while recorded(reply):
        reply = await again(worker, reply)
    assert [one.content for one in reply.conversation.messages] == ["b"], "which nobody waits for, but the worker drew it"
    over = await worker.step("turn 2")
    assert (over.done, over.reward) == (True, 0.5)


async def test_a_worker_that_tells_something_else_begins_anew(drawing, claim):
    await lost(drawing)
    reply = await drawing.next.step("something else")
    assert (reply.status, reply.is_away) == (pb.ENVIRONMENT_STATUS_ERROR, False)
    assert "another one than the worker told" in reply.reason
    opening = asyncio.create_task(drawing.next.open(attempt=1))
    assert (await asyncio.wait_for(drawing.asked, 20)).status_code == 410
    assert [one["attempt"] for one in (await claim(drawing.next.run_id)).json()] == [1]
    opening.cancel()


async def test_a_worker_that_stands_still_is_not_taken_for_dead(drawing):
    drawing.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(6)
    other = asyncio.create_task(drawing.next.open(timeout=2))
    await asyncio.wait({other})
    drawing.process.send_signal(signal.SIGCONT)
    drawing.process.send_signal(signal.SIGUSR1)
    assert (await asyncio.wait_for(drawing.asked, 20)).json()["choices"][0]["message"]["content"] == "turn 2"
    assert (await drawing.agent.end(reward=1)).status_code == 200
    assert await drawing.says() == "ENVIRONMENT_STATUS_OK"


async def test_what_another_worker_plays_already_is_closed(drawing):
    opening = asyncio.create_task(drawing.next.open())
    await asyncio.sleep(0.5)
    drawing.process.send_signal(signal.SIGKILL)
    answer = await asyncio.wait_for(drawing.asked, 20)
    assert (answer.status_code, "its rollout worker is gone" in answer.text) == (410, True)
    opening.cancel()

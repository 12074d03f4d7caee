"""Draws that an agent does not wait for: cancelled, recorded as such, and drawn to the same tokens when they are asked for again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import pytest

from gradbus.v1.environment_service_pb2 import ENVIRONMENT_STATUS_OK, AskedDraw, KeepAliveResponse, StepResponse
from gradbus.v1.episode_pb2 import END_REASON_ENVIRONMENT_DONE
from tests.integration.rollout.test_agents import StoppingAgent, after, aside, conversation, ids_of

SCRIPT = [after(None, "cd"), conversation("ef"), aside("jj"), after(0, "gh"), after(None, "ab")]


class LeavingAgent(StoppingAgent):
    """Goes away from some draws, and asks the same again, or what `instead` says."""

    def __init__(self, script, stops=None, instead=None):
        super().__init__(script, stops)
        self.leaves, self.asked, self.withdrawn, self.instead = asyncio.Queue(), {}, [], instead

    async def KeepAlive(self, request, context):  # noqa: N802 - named by gRPC
        session = await self.leaves.get()
        ordinals = [(f"another-{session}", 0), *((session, ordinal) for ordinal in range(self.steps_of(session) + 1))]
        return KeepAliveResponse(withdrawn_draws=[AskedDraw(session=of, ordinal=ordinal) for of, ordinal in ordinals])

    def steps_of(self, session):
        """How many it took: the ordinal of the draw that it waits for."""
        return len(self.told[session]) + sum(one.session == session for one in self.withdrawn)

    async def Open(self, request, context):  # noqa: N802 - named by gRPC
        answer = await super().Open(request, context)
        if answer.HasField("conversation"):
            self.asked[answer.session] = StepResponse(status=ENVIRONMENT_STATUS_OK, conversation=answer.conversation)
        return answer

    async def Step(self, request, context):  # noqa: N802 - named by gRPC
        if request.assistant.finish == "withdrawn":
            if request not in self.withdrawn:  # a worker that died may not have recorded the answer
                assert request.withdrawn == sum(one.session == request.session for one in self.withdrawn)
                self.withdrawn.append(request)
            return self.instead or self.asked[request.session]
        self.asked[request.session] = await super().Step(request, context)
        return self.asked[request.session]


class EarlyAgent(LeavingAgent):
    """Goes away from each turn that it asks for, once. Its worker has been told so before it hears what is asked."""

    def __init__(self, script, stops=None, loses=0):
        """`loses`: every so manieth answer to the call that says who leaves does not arrive."""
        super().__init__(script, stops)
        self.loses, self.calls, self.answer, self.heard, self.resumed = loses, 0, None, {}, {}

    async def KeepAlive(self, request, context):  # noqa: N802 - named by gRPC
        self.calls += 1
        if self.answer is None or request.known_draws == self.answer.withdrawn_draws:
            if self.answer is not None:
                self.heard[self.answer.withdrawn_draws[-1].session].set()
            self.answer = await super().KeepAlive(request, context)
        if self.loses and self.calls % self.loses == 0:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
        return self.answer

    async def Open(self, request, context):  # noqa: N802 - named by gRPC
        answer = await super().Open(request, context)
        if request.resume:
            self.resumed[answer.session] = self.steps_of(answer.session)
        await self.leave(answer.session)
        return answer

    async def Step(self, request, context):  # noqa: N802 - named by gRPC
        answer = await super().Step(request, context)
        if request.assistant.finish != "withdrawn" and not answer.done:
            await self.leave(request.session)
        return answer

    async def leave(self, session):
        """Returns when the worker calls again: it has the answer then."""
        self.heard[session] = asyncio.Event()
        self.leaves.put_nowait(session)
        await self.heard[session].wait()


@dataclass
class HeldEngine:
    """Draws nothing when it is asked for a chosen turn for the first time, until that call is cancelled."""

    engine: object
    agent: LeavingAgent
    holds: Callable[[tuple[int, ...]], bool]
    """Whether it is such a turn, by its prompt."""
    held: list = field(default_factory=list)
    cancelled: list = field(default_factory=list)
    drawn: list = field(default_factory=list)

    @property
    def name(self):
        return self.engine.name

    @property
    def version(self):
        return self.engine.version

    async def generate(self, groups):
        (group,) = groups
        asked = group.key, group.prompt_ids
        if asked in self.held or not self.holds(group.prompt_ids):
            self.drawn.append(asked)
            return await self.engine.generate(groups)
        self.held.append(asked)
        self.agent.leaves.put_nowait(f"{group.key}/0")
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            self.cancelled.append(asked)
            raise


@pytest.fixture
def held_engine(episode_engine):
    return lambda agent, holds=lambda prompt: len(prompt) % 2 == 0: HeldEngine(episode_engine, agent, holds)


def content(groups):
    return [
        (group.prompt_ids, sample.token_ids, sample.logprobs, list(sample.forks), list(sample.spans), list(sample.episode.turns))
        for group in groups
        for sample in group.samples
    ]


async def test_what_is_asked_again_is_drawn_to_the_same_tokens_in_the_same_place(play, held_engine):
    expected = await play(StoppingAgent(SCRIPT, None), agent="pull")
    agent = LeavingAgent(SCRIPT)
    engine = held_engine(agent)
    async with asyncio.timeout(120):
        groups = await play(agent, agent="pull", engine=engine)
    assert len(engine.held) == len(engine.cancelled) == len(agent.withdrawn) >= 12
    assert content(groups) == content(expected)


@pytest.mark.parametrize("loses", [0, 3])
async def test_a_draw_that_nobody_waits_for_before_it_begins_is_not_begun(play, held_engine, loses):
    """Also if the answer that says so is lost on its way: it is given again."""
    expected = await play(StoppingAgent(SCRIPT, None), agent="pull")
    agent = EarlyAgent(SCRIPT, loses=loses)
    engine = held_engine(agent, lambda prompt: False)
    async with asyncio.timeout(120):
        groups = await play(agent, agent="pull", engine=engine)
    assert len(engine.drawn) == len(agent.withdrawn) == sum(map(len, agent.told.values())) >= 12
    assert content(groups) == content(expected)


async def test_what_is_asked_in_its_place_goes_on_from_the_turns_that_there_are(play, held_engine):
    """The messages that were to follow the turn are not in the sample."""
    script = [after(None, "c"), after(None, "de")]
    expected = await play(StoppingAgent([after(None, "j"), after(None, "de")], None), agent="pull")
    agent = LeavingAgent(script, instead=after(None, "j"))
    engine = held_engine(agent, lambda prompt: prompt[-1:] == ids_of("c"))
    async with asyncio.timeout(120):
        groups = await play(agent, agent="pull", engine=engine)
    assert engine.cancelled
    assert content(groups) == content(expected)


async def test_an_agent_may_end_the_episode_after_it(play, held_engine):
    agent = LeavingAgent([after(None, "cd")] * 3, instead=StepResponse(status=ENVIRONMENT_STATUS_OK, done=True, reward=0.5))
    engine = held_engine(agent, lambda prompt: len(prompt) > 2)
    async with asyncio.timeout(120):
        groups = await play(agent, agent="pull", engine=engine)
    ended = [sample for group in groups for sample in group.samples if sample.episode.outcome.reward == 0.5]
    assert len(ended) == len(agent.withdrawn) > 0
    assert {sample.episode.end_reason for sample in ended} == {END_REASON_ENVIRONMENT_DONE}


async def test_the_next_worker_reads_from_the_journal_what_was_withdrawn(play, held_engine, buffer):
    expected = await play(StoppingAgent(SCRIPT, None), agent="pull")
    agent = LeavingAgent(SCRIPT, stops=9)
    engine = held_engine(agent)
    playing = asyncio.ensure_future(play(agent, agent="pull", buffer=buffer, engine=engine))
    async with asyncio.timeout(60):
        await agent.stopped.wait()
    playing.cancel()
    await asyncio.wait([playing])
    agent.stops, before = None, len(agent.withdrawn)
    assert before
    groups = await play(agent, agent="pull", buffer=buffer)
    assert content(groups) == content(expected)
    assert len(set(agent.steps)) == len(agent.steps), "no turn is told twice"


async def test_the_next_worker_is_told_what_is_withdrawn_before_it_draws(play, held_engine, buffer):
    expected = await play(StoppingAgent(SCRIPT, None), agent="pull")
    agent = EarlyAgent(SCRIPT, stops=9)
    engine = held_engine(agent, lambda prompt: False)
    playing = asyncio.ensure_future(play(agent, agent="pull", buffer=buffer, engine=engine))
    async with asyncio.timeout(60):
        await agent.stopped.wait()
    playing.cancel()
    await asyncio.wait([playing])
    agent.stops = None
    async with asyncio.timeout(120):
        groups = await play(agent, agent="pull", buffer=buffer, engine=engine)
    assert content(groups) == content(expected)
    withdrawn = {(one.session, one.turn + one.refused + one.untrained + one.withdrawn) for one in agent.withdrawn}
    assert withdrawn & agent.resumed.items(), "draws that the worker before had not begun, or not ended"
    assert len(set(agent.steps)) == len(agent.steps), "no turn is told twice"

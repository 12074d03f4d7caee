"""Draws that an agent does not wait for: cancelled, recorded as such, and drawn to the same tokens when they are asked for again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gradbus.v1.environment_service_pb2 import ENVIRONMENT_STATUS_OK, KeepAliveResponse, StepResponse
from gradbus.v1.episode_pb2 import END_REASON_ENVIRONMENT_DONE
from tests.integration.rollout.test_agents import StoppingAgent, after, aside, conversation, ids_of

SCRIPT = [after(None, "cd"), conversation("ef"), aside("jj"), after(0, "gh"), after(None, "ab")]


class LeavingAgent(StoppingAgent):
    """Goes away from some draws, and asks the same again, or what `instead` says."""

    def __init__(self, script, stops=None, instead=None):
        super().__init__(script, stops)
        self.leaves, self.asked, self.withdrawn, self.instead = asyncio.Queue(), {}, [], instead

    async def KeepAlive(self, request, context):  # noqa: N802 - named by gRPC
        return KeepAliveResponse(withdrawn=["another", await self.leaves.get()])

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


@dataclass
class HeldEngine:
    """Draws nothing when it is asked for a chosen turn for the first time, until that call is cancelled."""

    engine: object
    agent: LeavingAgent
    holds: Callable[[tuple[int, ...]], bool]
    """Whether it is such a turn, by its prompt."""
    held: list = field(default_factory=list)
    cancelled: list = field(default_factory=list)

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

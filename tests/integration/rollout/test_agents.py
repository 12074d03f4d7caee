"""Episodes of an agent: conversations of its own, turns that it goes on from, and the seeds of what it asks in any order."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from gradbus.formats.tokens import pack_ids, unpack_ids, unpack_logprobs
from gradbus.ids import asked_turn_seed, digest_of
from gradbus.telemetry import Metrics
from gradbus.v1.environment_service_pb2 import (
    DETERMINISM_NONE,
    DETERMINISM_RECORDED,
    ENVIRONMENT_STATUS_OK,
    ENVIRONMENT_STATUS_UNKNOWN_SESSION,
    CloseResponse,
    Conversation,
    DescribeResponse,
    OpenResponse,
    StepResponse,
)
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceServicer
from gradbus.v1.episode_pb2 import END_REASON_ENVIRONMENT_DONE, EndReason, Message
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK
from gradbus.v1.sample_pb2 import SPAN_KIND_POLICY, SPAN_KIND_USER
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.episodes import metrics as episode_metrics

from .conftest import LETTERS, NEW_TOKENS

NAMES = ("turns", "forks", "tokens")


def users(text):
    return [Message(role="user", content=text)]


def conversation(text, **more):
    """Asks in a sequence of its own."""
    return StepResponse(status=ENVIRONMENT_STATUS_OK, conversation=Conversation(messages=users(text)), **more)


def after(turn, text, **more):
    """Goes on from a turn; None: from the last one."""
    more |= {} if turn is None else {"after_turn": turn}
    return StepResponse(status=ENVIRONMENT_STATUS_OK, messages=users(text), **more)


def ids_of(text):
    return tuple(3 + LETTERS.index(letter) for letter in text)


@dataclass
class Agent(EnvironmentServiceServicer):
    """Asks what `script` says, turn by turn, and is done after it."""

    script: list = field(default_factory=list)
    first: str | Callable[[str], str] = "ab"
    script_of: Callable[[str], list] | None = None
    first_most: int = 0
    first_untrained: bool = False
    determinism: int = DETERMINISM_NONE
    lose: Callable[[object], bool] = lambda request: False
    opened: list = field(default_factory=list)
    told: dict = field(default_factory=dict)
    """What the policy did, by session."""

    async def Describe(self, request, context):  # noqa: N802 - named by gRPC
        return DescribeResponse(name="agent", digest="sha256:a", determinism=self.determinism)

    async def Open(self, request, context):  # noqa: N802 - named by gRPC
        self.opened.append(request)
        session = f"{request.episode_id}/{request.attempt}"
        self.told[session] = []
        first = self.first if isinstance(self.first, str) else self.first(request.episode_id)
        asked = Conversation(messages=users(first), untrained=self.first_untrained)
        return OpenResponse(status=ENVIRONMENT_STATUS_OK, session=session, conversation=asked, max_new_tokens=self.first_most)

    async def Step(self, request, context):  # noqa: N802 - named by gRPC
        if self.lose(request):
            return StepResponse(status=ENVIRONMENT_STATUS_UNKNOWN_SESSION)
        told = self.told[request.session]
        assert request.turn == len(told) - request.refused - request.untrained, "no turn is repeated"
        told.append(request)
        script = self.script_of(request.session.partition("/")[0]) if self.script_of else self.script
        if request.is_last or len(told) > len(script):
            return StepResponse(status=ENVIRONMENT_STATUS_OK, done=True, reward=1.0)
        return script[len(told) - 1]

    async def Close(self, request, context):  # noqa: N802 - named by gRPC
        return CloseResponse()

    def drawn(self, sample, attempt=0):
        """The ids of each turn, as the agent was told them."""
        told = self.told[f"train.4.{sample.sample_id}/{attempt}"]
        return [
            unpack_ids(request.assistant.drawn.token_ids)
            for request in told
            if request.assistant.finish != "none" and not request.is_untrained
        ]


def sequences(group, sample):
    """(prompt, tokens, log-probabilities, spans) of each sequence of a sample, at the number that its turns give."""
    own = (unpack_ids(group.prompt_ids), unpack_ids(sample.token_ids), unpack_logprobs(sample.logprobs), sample.spans)
    forks = [(unpack_ids(f.prompt_ids), unpack_ids(f.token_ids), unpack_logprobs(f.logprobs), f.spans) for f in sample.forks]
    return [own, *forks]


def full(groups, turns):
    """The samples with so many turns, with their groups."""
    found = [(group, sample) for group in groups for sample in group.samples if len(sample.episode.turns) == turns]
    assert found, "some episodes have all of their turns"
    return found


def ends(groups):
    return {EndReason.Name(sample.episode.end_reason).removeprefix("END_REASON_") for group in groups for sample in group.samples}


async def test_an_agent_that_only_goes_on_has_one_sequence(play):
    agent = Agent([after(None, "cd"), after(None, "ef")])
    groups = await play(agent, agent="pull")
    for group, sample in full(groups, 3):
        drawn = agent.drawn(sample)
        assert unpack_ids(group.prompt_ids) == ids_of("ab")
        assert unpack_ids(sample.token_ids) == (*drawn[0], *ids_of("cd"), *drawn[1], *ids_of("ef"), *drawn[2])
        assert len(sample.forks) == 0
        assert [turn.sequence for turn in sample.episode.turns] == [0, 0, 0]
        assert (sample.episode.outcome.status, sample.episode.outcome.reward) == (REWARD_STATUS_OK, 1.0)
        told = agent.told[f"train.4.{sample.sample_id}/0"]
        for request, turn in zip(told, sample.episode.turns, strict=True):
            exact = request.assistant.drawn
            assert exact.logprobs == sample.logprobs[4 * turn.start : 4 * turn.end]
            assert (exact.prompt_tokens, exact.version_first, exact.version_last) == (2 + turn.start, 4, 4)


async def test_an_environment_is_not_told_tokens(play):
    agent = Agent([after(None, "cd")])
    await play(agent)
    assert not any(request.assistant.HasField("drawn") for told in agent.told.values() for request in told)


async def test_sequences_go_on_and_fork_with_exactly_the_ids_that_were_drawn(play):
    agent = Agent([conversation("gh"), after(0, "c"), after(0, "dd"), after(1, "e"), after(4, "f")])
    groups = await play(agent, agent="pull")
    for group, sample in full(groups, 6):
        first, sub, second, branch, sub_on, sub_last = agent.drawn(sample)
        found = [(prompt, tokens) for prompt, tokens, _, _ in sequences(group, sample)]
        assert found == [
            (ids_of("ab"), (*first, *ids_of("c"), *second)),
            (ids_of("gh"), (*sub, *ids_of("e"), *sub_on, *ids_of("f"), *sub_last)),
            ((*ids_of("ab"), *first, *ids_of("dd")), branch),
        ]
        assert [turn.sequence for turn in sample.episode.turns] == [0, 1, 0, 2, 1, 1]
        assert [(span.kind, span.turn) for span in sample.spans] == [(SPAN_KIND_POLICY, 0), (SPAN_KIND_USER, 0), (SPAN_KIND_POLICY, 2)]
        assert [span.turn for span in sample.forks[0].spans] == [1, 1, 4, 4, 5]


async def test_turns_sequences_and_tokens_are_counted(play, monkeypatch):
    counted = Metrics()
    monkeypatch.setattr(episode_metrics, "PROCESS", counted)
    groups = await play(Agent([conversation("gh"), after(0, "c"), after(0, "dd")]), agent="pull")
    found = {name: {tuple(point.attributes.values()): point.value for point in counted.read(f"gradbus.episode.{name}")} for name in NAMES}
    every = [sample for group in groups for sample in group.samples]
    spans = [span for sample in every for sequence in (sample, *sample.forks) for span in sequence.spans]
    drawn = sum(turn.end - turn.start for sample in every for turn in sample.episode.turns)
    others = sum(span.end - span.start for span in spans if not span.trainable)
    assert found == {
        "turns": {(): sum(len(sample.episode.turns) for sample in every)},
        "forks": {(): sum(len(sample.forks) for sample in every)},
        "tokens": {("policy",): drawn, ("user",): others},
    }


async def test_every_drawn_token_is_trained_in_exactly_one_sequence(play, episode_engine):
    """Whatever an agent asks: each turn is where it was drawn, after the ids that it was drawn after."""

    def script_of(episode):
        choose = random.Random(episode)
        words = ["".join(choose.choices(LETTERS, k=choose.randint(1, 3))) for _ in range(11)]
        steps = []
        for turn, word in enumerate(words):
            kind = choose.choice(["conversation", "last", "earlier", "earlier"])
            steps.append(conversation(word) if kind == "conversation" else after(None if kind == "last" else choose.randint(0, turn), word))
        return steps

    agent = Agent(script_of=script_of)
    groups = await play(agent, agent="pull", max_turns=12)
    assert max(len(sample.forks) for group in groups for sample in group.samples) > 1
    for group in groups:
        for sample in group.samples:
            found = sequences(group, sample)
            trained = Counter()
            for place, (prompt, tokens, logprobs, spans) in enumerate(found):
                assert len(logprobs) == len(tokens)
                assert np.isfinite(logprobs).all()
                assert [span.start for span in spans] == [0, *[span.end for span in spans[:-1]]][: len(spans)]
                assert not tokens or (spans[-1].end == len(tokens) and prompt)
                trained.update((place, at) for span in spans if span.trainable for at in range(span.start, span.end))
            drawn = Counter((turn.sequence, at) for turn in sample.episode.turns for at in range(turn.start, turn.end))
            assert trained == drawn
            assert set(drawn.values()) <= {1}
            ids = [found[turn.sequence][1][turn.start : turn.end] for turn in sample.episode.turns]
            assert ids == agent.drawn(sample)
            for turn in sample.episode.turns:
                prompt, tokens, logprobs, _ = found[turn.sequence]
                (again,) = await episode_engine.generate([PromptGroup("again", prompt + tokens[: turn.start], (turn.seed,))])
                assert again.completions[0].token_ids == tokens[turn.start : turn.end]
                assert unpack_logprobs(again.completions[0].logprobs) == logprobs[turn.start : turn.end]


async def test_sub_agents_draw_the_same_in_whatever_order_they_ask(play):
    """A seed is of what is asked; the same prompt asked again draws anew."""
    orders = [["cd", "efg", "cd", "h"], ["h", "cd", "efg", "cd"], ["efg", "h", "cd", "cd"]]
    drawn = []
    for order in orders:
        agent = Agent([conversation(text) for text in order])
        groups = await play(agent, agent="pull")
        found = {}
        for _, sample in full(groups, 5):
            for turn, text in zip(sample.episode.turns[1:], order, strict=True):
                digest = digest_of(pack_ids(ids_of(text)))
                occurrence = sum(known[:2] == (sample.sample_id, text) for known in found)
                assert turn.seed == asked_turn_seed(sample.seed, digest, occurrence)
                found[sample.sample_id, text, occurrence] = agent.drawn(sample)[1 + order.index(text)], turn.seed
        drawn.append(found)
    shared = set.intersection(*map(set, drawn))
    assert shared
    assert all(drawn[0][key] == other[key] for other in drawn[1:] for key in shared)
    assert all(drawn[0][sample, text, 0][1] != drawn[0][sample, text, n][1] for sample, text, n in shared if n)


async def test_an_episode_that_begins_with_another_conversation_is_in_its_forks_alone(play):
    agent = Agent([after(None, "c"), conversation("ab")], first=lambda episode: "jj" if episode.endswith(".1") else "ab")
    groups = await play(agent, agent="pull")
    assert {unpack_ids(group.prompt_ids) for group in groups} == {ids_of("ab")}
    for group in groups:
        other = group.samples[1]
        assert (other.token_ids, other.logprobs, len(other.spans)) == (b"", b"", 0)
        assert unpack_ids(other.forks[0].prompt_ids) == ids_of("jj")
        assert [turn.sequence for turn in other.episode.turns] == [1, 1, 2][: len(other.episode.turns)]
        drawn = agent.drawn(other)
        assert unpack_ids(other.forks[0].token_ids)[: len(drawn[0])] == drawn[0]
        assert all(sample.token_ids for sample in group.samples if sample.n != 1)


async def test_an_agent_may_want_fewer_tokens_and_goes_on_after_a_turn_that_these_cut_off(play):
    agent = Agent([after(None, "c", max_new_tokens=1), after(None, "d")], first_most=2)
    groups = await play(agent, agent="pull")
    turns = [sample.episode.turns for group in groups for sample in group.samples]
    assert all(of_one[0].end - of_one[0].start <= 2 for of_one in turns)
    assert all(len(of_one) == 3 and of_one[1].end - of_one[1].start == 1 for of_one in turns)
    assert "length" in {of_one[0].finish for of_one in turns}
    assert ends(groups) <= {"LENGTH", "ENVIRONMENT_DONE"}
    told = [request for of_one in agent.told.values() for request in of_one[:2]]
    assert not any(request.is_last for request in told)
    assert NEW_TOKENS > 2


LONG = "a" * 80


def refusals(agent):
    """What is told of requests that had no room: (turn, refused, is_last), by episode."""
    found = [[one for one in told if one.assistant.finish == "none"] for told in agent.told.values()]
    return [[(one.turn, one.refused, one.is_last) for one in refused] for refused in found if refused]


async def test_an_agent_whose_conversation_does_not_fit_goes_on_with_a_shorter_one(play):
    agent = Agent([conversation(LONG), conversation("gh"), after(None, LONG), after(1, "ef")])
    groups = await play(agent, agent="pull")
    assert refusals(agent).count([(1, 0, False), (2, 1, False)])
    for group, sample in full(groups, 3):
        first, second, third = agent.drawn(sample)
        found = [(prompt, tokens) for prompt, tokens, _, _ in sequences(group, sample)]
        assert found == [(ids_of("ab"), first), (ids_of("gh"), (*second, *ids_of("ef"), *third))]
        assert (sample.episode.end_reason, sample.episode.outcome.status) == (END_REASON_ENVIRONMENT_DONE, REWARD_STATUS_OK)


async def test_an_episode_that_begins_too_long_has_the_shorter_prompt(play):
    agent = Agent([conversation("ab")], first=LONG)
    groups = await play(agent, agent="pull")
    assert all(unpack_ids(group.prompt_ids) == ids_of("ab") and sample.token_ids for group, sample in full(groups, 1))


async def test_an_agent_that_ends_when_its_conversation_does_not_fit_ended_for_the_context(play):
    agent = Agent([conversation(LONG)])
    groups = await play(agent, agent="pull")
    assert ends(groups) <= {"CONTEXT", "LENGTH"}
    assert "CONTEXT" in ends(groups)
    assert all(len(sample.forks) == 0 for group in groups for sample in group.samples)
    assert all(sample.episode.outcome.status == REWARD_STATUS_OK for group in groups for sample in group.samples)


async def test_an_agent_is_refused_as_often_as_it_may_have_turns(play):
    agent = Agent([conversation(LONG)] * 9)
    groups = await play(agent, agent="pull", max_turns=3)
    assert "CONTEXT" in ends(groups)
    assert set(map(tuple, refusals(agent))) == {((1, 0, False), (1, 1, False), (1, 2, False), (1, 3, True))}


async def test_a_turn_ends_at_a_stop_text_with_exactly_the_tokens_that_were_drawn(play, episode_engine):
    stops = ["fghij", "", "fgj", "fghij", "", "hij", "fghij"]
    agent = Agent([after(0 if stop == "fgj" else None, "cd", stop=list(stop)) for stop in stops])
    groups = await play(agent, agent="pull")
    stopped = 0
    for group, sample in [(of, sample) for of in groups for sample in of.samples]:
        found = sequences(group, sample)
        told = agent.told[f"train.4.{sample.sample_id}/0"]
        for turn, request, stop in zip(sample.episode.turns, told, ("", *stops), strict=False):
            prompt, tokens, logprobs, _ = found[turn.sequence]
            (again,) = await episode_engine.generate([PromptGroup("again", prompt + tokens[: turn.start], (turn.seed,))])
            whole = again.completions[0].token_ids
            kept = next((at + 1 for at, token in enumerate(whole) if token in map(ids_of_one, stop)), len(whole))
            assert tokens[turn.start : turn.end] == whole[:kept]
            assert logprobs[turn.start : turn.end] == unpack_logprobs(again.completions[0].logprobs)[:kept]
            if kept < len(whole) or (stop and whole[-1] in map(ids_of_one, stop)):
                stopped += 1
                assert (turn.stop_text, request.assistant.stop_text, turn.finish) == (*[LETTERS[whole[kept - 1] - 3]] * 2, "stop")
                assert not turn.text.endswith(turn.stop_text)
                assert unpack_ids(request.assistant.drawn.token_ids) == whole[:kept]
            else:
                assert turn.stop_text == ""
        assert all(span.end <= len(tokens) for _, tokens, _, spans in found for span in spans)
    assert stopped > 3


def ids_of_one(letter):
    (token,) = ids_of(letter)
    return token


def aside(text, **more):
    """Asks for a turn that is not trained."""
    asked = Conversation(messages=users(text), untrained=True)
    return StepResponse(status=ENVIRONMENT_STATUS_OK, conversation=asked, **more)


async def test_untrained_turns_are_told_and_change_nothing(play, episode_engine):
    script = [after(None, "cd"), conversation("gh"), after(0, "e")]
    expected = await play(Agent(script), agent="pull", max_turns=4)
    talking = Agent([aside("jj"), script[0], aside("jj"), aside(LONG), script[1], aside("ih", max_new_tokens=1), script[2]])
    groups = await play(talking, agent="pull", max_turns=4)
    for group, before in zip(groups, expected, strict=True):
        for sample, other in zip(group.samples, before.samples, strict=True):
            told = talking.told[f"train.4.{sample.sample_id}/0"]
            assert (sample.token_ids, sample.logprobs, sample.forks) == (other.token_ids, other.logprobs, other.forks)
            assert [turn.text for turn in sample.episode.turns] == [turn.text for turn in other.episode.turns]
            assert sample.episode.end_reason == other.episode.end_reason
            asked = [request for request in told if request.is_untrained]
            assert [request.untrained for request in asked] == list(range(len(asked)))
            assert [request.turn for request in told if not request.is_untrained and request.assistant.finish != "none"] == list(
                range(len(sample.episode.turns))
            )
    (one,) = [request for told in talking.told.values() for request in told if request.session.endswith(f"{sample.sample_id}/0")][1:2]
    seed = asked_turn_seed(sample.seed, digest_of(pack_ids(ids_of("jj"))), 0)
    (again,) = await episode_engine.generate([PromptGroup("again", ids_of("jj"), (seed,))])
    assert unpack_ids(one.assistant.drawn.token_ids) == again.completions[0].token_ids


async def test_untrained_requests_without_room_end_no_episode(play):
    script = [after(None, "cd"), after(None, "e")]
    expected = await play(Agent(script), agent="pull", max_turns=3)
    agent = Agent([script[0], *[aside(LONG)] * 5, script[1], aside(LONG)])
    groups = await play(agent, agent="pull", max_turns=3)
    assert [5] * len(refusals(agent)) == [len(of_one) for of_one in refusals(agent)], "more than it may have turns"
    assert not any(refused or is_last for of_one in refusals(agent) for _, refused, is_last in of_one)
    assert [len(sample.token_ids) for _, sample in full(groups, 3)] == [len(sample.token_ids) for _, sample in full(expected, 3)]
    assert ends(groups) == ends(expected)


async def test_an_agent_that_ends_when_an_untrained_request_does_not_fit_ended_by_itself(play):
    groups = await play(Agent([aside(LONG)]), agent="pull")
    assert "ENVIRONMENT_DONE" in ends(groups)
    assert "CONTEXT" not in ends(groups)


async def test_an_episode_may_begin_with_an_untrained_turn(play):
    agent = Agent([conversation("gh"), after(None, "cd")], first_untrained=True)
    groups = await play(agent, agent="pull")
    assert {unpack_ids(group.prompt_ids) for group in groups} == {ids_of("gh")}
    assert all(len(sample.episode.turns) <= 2 and sample.token_ids for group in groups for sample in group.samples)


class StoppingAgent(Agent):
    """Lets nobody in after so many steps, until `stops` is None; a step that it has answered gets the same answer."""

    def __init__(self, script, stops):
        super().__init__(script, determinism=DETERMINISM_RECORDED)
        self.stops, self.stopped, self.answers, self.steps = stops, asyncio.Event(), {}, []

    async def Open(self, request, context):  # noqa: N802 - named by gRPC
        if request.resume:
            return OpenResponse(status=ENVIRONMENT_STATUS_OK, session=f"{request.episode_id}/{request.attempt}")
        return await super().Open(request, context)

    async def Step(self, request, context):  # noqa: N802 - named by gRPC
        key = request.session, request.SerializeToString(deterministic=True)
        if key not in self.answers:
            if self.stops is not None and len(self.steps) >= self.stops:
                self.stopped.set()
                await asyncio.sleep(60)
            self.steps.append(key)
            self.answers[key] = await super().Step(request, context)
        return self.answers[key]


async def test_stop_texts_and_untrained_turns_are_read_from_the_journal(play, buffer):
    """A worker dies after so many answers, and the next one ends in the same samples without a turn that is told twice."""
    script = [
        after(None, "cd", stop=list("fghij")),
        aside("jj", stop=["g"]),
        after(None, "ef"),
        aside("ih"),
        after(0, "e", stop=["f", "j"]),
    ]
    expected = await play(StoppingAgent(script, None), agent="pull")
    agent = StoppingAgent(script, 11)
    playing = asyncio.ensure_future(play(agent, agent="pull", buffer=buffer))
    async with asyncio.timeout(60):
        await agent.stopped.wait()
    playing.cancel()
    await asyncio.wait([playing])
    agent.stops, before = None, list(agent.steps)
    groups = await play(agent, agent="pull", buffer=buffer)
    assert len(before) == 11
    assert len(set(agent.steps)) == len(agent.steps)
    for group, other in zip(groups, expected, strict=True):
        for sample, clean in zip(group.samples, other.samples, strict=True):
            assert (sample.token_ids, sample.logprobs, sample.forks) == (clean.token_ids, clean.logprobs, clean.forks)
            assert list(sample.episode.turns) == list(clean.episode.turns)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (after(7, "c"), "messages follow turn 7 of 1; name a turn that was drawn"),
        (
            StepResponse(status=ENVIRONMENT_STATUS_OK, messages=[Message(role="system", content="a")]),
            "a message of the role 'system' follows a turn",
        ),
        (
            StepResponse(status=ENVIRONMENT_STATUS_OK, conversation=Conversation(messages=[Message(role="user")])),
            "an agent's conversation has an empty prompt",
        ),
    ],
)
async def test_what_the_model_cannot_take_masks_that_sample_alone(play, asked, reason):
    agent = Agent(script_of=lambda episode: [asked if episode.endswith(".1") else after(None, "c")])
    async with asyncio.timeout(120):
        groups = await play(agent, agent="pull")
    for group in groups:
        for sample in group.samples:
            outcome = sample.episode.outcome
            if sample.n == 1 and sample.episode.turns[0].finish == "stop":
                assert outcome.status == REWARD_STATUS_INVALID
                assert reason in outcome.reason
            else:
                assert outcome.status == REWARD_STATUS_OK

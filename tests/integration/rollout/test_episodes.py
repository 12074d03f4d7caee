"""Episodes with a real engine, a real tokenizer's process and an environment over gRPC: tokens, ends, faults, lost sessions."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2ForCausalLM

from gradbus.control.runs import WorkerPresence
from gradbus.errors import EnvironmentFaultError
from gradbus.ids import environment_seed, sample_seed, turn_seed
from gradbus.v1.environment_service_pb2 import (
    ENVIRONMENT_STATUS_ERROR,
    ENVIRONMENT_STATUS_INVALID,
    ENVIRONMENT_STATUS_OK,
    ENVIRONMENT_STATUS_UNKNOWN_SESSION,
    CloseResponse,
    DescribeResponse,
    OpenResponse,
    StepResponse,
)
from gradbus.v1.environment_service_pb2_grpc import (
    EnvironmentServiceServicer,
)
from gradbus.v1.episode_pb2 import END_REASON_LENGTH, EndReason, Message
from gradbus.v1.reward_pb2 import REWARD_STATUS_INVALID, REWARD_STATUS_OK
from gradbus.v1.sample_pb2 import FINISH_REASON_STOP, SPAN_KIND_POLICY, SPAN_KIND_USER
from gradbus.v1.task_pb2 import TaskKind
from gradbus_rollout.engines.base import PromptGroup
from gradbus_rollout.episodes import environment

from .conftest import NEW_TOKENS


@dataclass
class World(EnvironmentServiceServicer):
    """Answers each turn with `says`, until `last` turns; a hook may take the place of an answer."""

    says: str = "ab"
    last: int = 3
    first: str = ""
    hook: object = None
    opened: list = field(default_factory=list)
    stepped: list = field(default_factory=list)
    closed: list = field(default_factory=list)
    known: set = field(default_factory=set)

    async def Describe(self, request, context):  # noqa: N802 - named by gRPC
        return DescribeResponse(name="world", digest="sha256:w")

    async def Open(self, request, context):  # noqa: N802 - named by gRPC
        self.opened.append(request)
        if self.hook and (answer := self.hook(self, request)) is not None:
            return answer
        session = f"{request.episode_id}/{request.attempt}/{len(self.opened)}"
        self.known.add(session)
        messages = [Message(role="user", content=self.first)] if self.first else []
        return OpenResponse(status=ENVIRONMENT_STATUS_OK, session=session, messages=messages)

    async def Step(self, request, context):  # noqa: N802 - named by gRPC
        self.stepped.append(request)
        if self.hook and (answer := self.hook(self, request)) is not None:
            return answer
        if request.session not in self.known:
            return StepResponse(status=ENVIRONMENT_STATUS_UNKNOWN_SESSION)
        done = request.turn + 1 >= self.last
        return StepResponse(
            status=ENVIRONMENT_STATUS_OK,
            messages=[] if done else [Message(role="user", content=self.says)],
            done=done,
            reward=0.25,
            components={"steps": 1.0},
        )

    async def Close(self, request, context):  # noqa: N802 - named by gRPC
        self.closed.append(request.session)
        return CloseResponse()


def ends(groups):
    return [EndReason.Name(sample.episode.end_reason).removeprefix("END_REASON_") for group in groups for sample in group.samples]


def samples(groups):
    return [(sample.token_ids, sample.logprobs, [str(span) for span in sample.spans]) for group in groups for sample in group.samples]


async def test_an_episode_is_one_sample_of_drawn_turns_and_what_was_said_between_them(play):
    world = World()
    groups = await play(world)
    full = [sample for group in groups for sample in group.samples if len(sample.episode.turns) == 3]
    assert full, "some episodes have all of their turns"
    for sample in full:
        ids = np.frombuffer(sample.token_ids, "<i4").tolist()
        assert [span.start for span in sample.spans] == [0, *[span.end for span in sample.spans[:-1]]]
        assert sample.spans[-1].end == len(ids) == len(sample.logprobs) // 4
        assert [(span.kind, span.trainable, span.turn) for span in sample.spans] == [
            (SPAN_KIND_POLICY, True, 0),
            (SPAN_KIND_USER, False, 0),
            (SPAN_KIND_POLICY, True, 1),
            (SPAN_KIND_USER, False, 1),
            (SPAN_KIND_POLICY, True, 2),
        ]
        assert {span.version for span in sample.spans} == {4}
        for span in sample.spans:
            if span.kind == SPAN_KIND_USER:
                assert ids[span.start : span.end] == [3, 4]
                assert not np.frombuffer(sample.logprobs, "<f4")[span.start : span.end].any()
        assert [turn.seed for turn in sample.episode.turns] == [turn_seed(sample.seed, n) for n in range(3)]
        assert (sample.episode.outcome.status, sample.episode.outcome.reward) == (REWARD_STATUS_OK, 0.75)
        assert dict(sample.episode.outcome.components) == {"steps": 3.0}
    assert [sample.seed for sample in groups[1].samples] == [sample_seed(0, "train", 1, n) for n in range(3)]
    assert {(request.seed, request.item_json) for request in world.opened if request.episode_id.startswith("train.4.1.")} == {
        (environment_seed(0, "train", 1), '{"answer": "e"}')
    }
    assert sorted(world.closed) == sorted(world.known), "every session is closed"


async def test_each_turn_is_drawn_from_all_tokens_before_it(play, episode_engine):
    """What the engine gives for prompt and tokens so far is what the sample holds."""

    group = (await play(World()))[0]
    prompt = tuple(np.frombuffer(group.prompt_ids, "<i4").tolist())
    for sample in group.samples:
        ids = tuple(np.frombuffer(sample.token_ids, "<i4").tolist())
        for turn in sample.episode.turns:
            (drawn,) = await episode_engine.generate([PromptGroup("again", prompt + ids[: turn.start], (turn.seed,))])
            assert drawn.completions[0].token_ids == ids[turn.start : turn.end]
            assert drawn.completions[0].logprobs == sample.logprobs[4 * turn.start : 4 * turn.end]


async def test_the_last_episode_of_a_group_is_greedy_if_it_is_the_baseline(play, episode_engine):
    for group in await play(World(), algorithm={"name": "remax"}):
        prompt = tuple(np.frombuffer(group.prompt_ids, "<i4").tolist())
        likeliest = []
        for sample in group.samples:
            ids = tuple(np.frombuffer(sample.token_ids, "<i4").tolist())
            asked = [PromptGroup("again", prompt + ids[: turn.start], (0,), greedy=1) for turn in sample.episode.turns]
            drawn = [found.completions[0].token_ids for found in await episode_engine.generate(asked)]
            likeliest.append(drawn == [ids[turn.start : turn.end] for turn in sample.episode.turns])
        assert likeliest == [False, False, True]


async def test_each_turn_begins_with_the_version_that_its_span_names_whenever_weights_change(play, episode_engine, model_folder, tmp_path):
    """New weights at every third turn, while others are drawn: nothing that an older version computed is used by the next turn."""
    weights = load_file(model_folder / "model.safetensors")
    loaded, loading = {4: weights}, asyncio.Lock()

    class SwappingWorld(World):
        async def Step(self, request, context):  # noqa: N802 - named by gRPC
            answer = await super().Step(request, context)
            async with loading:  # or an older version could be loaded last
                if len(self.stepped) >= 3 * len(loaded):
                    version = max(loaded) + 1
                    loaded[version] = {name: tensor * (1.0 + 0.1 * (version - 4)) for name, tensor in weights.items()}
                    save_file(loaded[version], tmp_path / str(version))
                    await episode_engine.load([tmp_path / str(version)], version)
            return answer

    groups = await play(SwappingWorld(last=6))
    model, seen = Qwen2ForCausalLM.from_pretrained(model_folder), set()
    for group in groups:
        prompt = np.frombuffer(group.prompt_ids, "<i4").tolist()
        for sample in group.samples:
            ids = torch.tensor([*prompt, *np.frombuffer(sample.token_ids, "<i4").tolist()])
            logprobs = torch.tensor(np.frombuffer(sample.logprobs, "<f4").copy())
            drawn = [span for span in sample.spans if span.trainable]
            assert [span.version for span in drawn] == sorted(span.version for span in drawn)
            firsts = {span.turn: span for span in reversed(drawn)}  # the engine keeps what a turn in flight has computed before a load
            for span in firsts.values():
                model.load_state_dict(loaded[span.version])
                with torch.no_grad():
                    expected = torch.log_softmax(model(ids[None]).logits[0].float(), -1)
                at = torch.arange(span.start, span.end)
                found = expected[at + len(prompt) - 1, ids[at + len(prompt)]]
                assert (found - logprobs[at]).abs().max() < 1e-4
            seen |= {tuple(span.version for span in drawn)}
    assert any(len(set(versions)) > 1 for versions in seen), "weights change in the middle of an episode"


async def test_faults_that_pass_and_sessions_that_are_lost_leave_the_same_samples(play):
    clean = samples(await play(World()))
    failed = set()

    def once(world, request):
        key = getattr(request, "episode_id", None) or request.session.partition("/")[0]
        if hasattr(request, "assistant") and request.turn == 1 and key not in failed:
            failed.add(key)
            if key.endswith(".0"):
                return StepResponse(status=ENVIRONMENT_STATUS_ERROR, reason="a host went away")
            world.known.discard(request.session)
        return None

    world = World(hook=once)
    groups = await play(world)
    assert samples(groups) == clean
    again = [request for request in world.opened if request.attempt == 1]
    assert {request.episode_id for request in again} == {key for key in failed if key.endswith(".0")}
    assert all(
        sample.episode.attempt == (1 if f"train.4.{sample.sample_id}" in failed and sample.n == 0 else 0) for sample in groups[0].samples
    )


async def test_a_fault_that_stays_masks_the_sample_and_gives_it_no_reward(play):
    def hook(world, request):
        if hasattr(request, "assistant") and request.session.startswith("train.4.0.1/"):
            return StepResponse(status=ENVIRONMENT_STATUS_ERROR, reason="no disk")
        return None

    world = World(hook=hook)
    groups = await play(world)
    broken, whole = groups[0].samples[1], [sample for group in groups for sample in group.samples if sample.sample_id != "0.1"]
    assert (broken.episode.outcome.status, broken.episode.outcome.reward) == (REWARD_STATUS_INVALID, 0.0)
    assert broken.episode.outcome.reason == "the environment failed in 3 attempts: no disk"
    assert all(sample.episode.outcome.status == REWARD_STATUS_OK for sample in whole)
    assert sorted(request.attempt for request in world.opened if request.episode_id == "train.4.0.1") == [0, 1, 2]


async def test_an_item_that_cannot_be_judged_is_not_tried_again(play):
    def hook(world, request):
        return OpenResponse(status=ENVIRONMENT_STATUS_INVALID, reason="no such level") if not hasattr(request, "assistant") else None

    world = World(hook=hook)
    groups = await play(world)
    assert ends(groups) == ["FAILED"] * 6
    assert {sample.episode.outcome.reason for group in groups for sample in group.samples} == {"no such level"}
    assert len(world.opened) == 6


async def test_an_environment_that_is_away_is_waited_for_and_shown_after_a_while(play, monkeypatch):
    monkeypatch.setattr(environment, "_AWAY_SECONDS", 0.4)
    presence, shown = WorkerPresence(worker="worker", role="rollout", incarnation="1"), []

    def hook(world, request):
        if hasattr(request, "assistant"):
            return None
        shown.append((presence.trouble, presence.awaits_environment))
        away = len(world.opened) < 14
        return OpenResponse(status=ENVIRONMENT_STATUS_ERROR, reason="nobody listens at http://host", is_away=True) if away else None

    world = World(hook=hook)
    groups = await play(world, presence=presence)
    assert "FAILED" not in ends(groups)
    assert shown[:6] == [("", False)] * 6, "it may come back"
    assert ("nobody listens at http://host", True) in shown
    assert (presence.trouble, presence.awaits_environment) == ("", False)
    assert {request.attempt for request in world.opened} == {0}


async def test_an_episode_that_waits_while_others_are_played_is_no_trouble(play, monkeypatch):
    monkeypatch.setattr(environment, "_AWAY_SECONDS", 0.0)
    presence, shown = WorkerPresence(worker="worker", role="rollout", incarnation="1"), []

    def hook(world, request):
        shown.append((presence.trouble, presence.awaits_environment))
        if len(world.opened) > 9 or hasattr(request, "assistant") or not request.episode_id.endswith(".1.2"):
            return None
        return OpenResponse(status=ENVIRONMENT_STATUS_ERROR, reason="no agent has claimed it", is_away=True, is_queued=True)

    assert "FAILED" not in ends(await play(World(hook=hook), presence=presence))
    assert set(shown) == {("", False)}


@pytest.mark.parametrize(
    ("environment", "reasons"),
    [
        ({"max_turns": 2}, {"MAX_TURNS", "LENGTH"}),
        ({"max_turns": 100, "max_tokens": NEW_TOKENS + 1}, {"MAX_TOKENS", "LENGTH"}),
        ({"max_turns": 100}, {"CONTEXT", "LENGTH"}),
    ],
)
async def test_a_limit_ends_an_episode_and_the_environment_judges_its_state(play, environment, reasons):
    world = World(last=1000)
    groups = await play(world, **environment)
    assert set(ends(groups)) <= reasons
    assert set(ends(groups)) - {"LENGTH"} or set(ends(groups)) == {"LENGTH"}
    for group in groups:
        for sample in group.samples:
            key = f"train.4.{sample.sample_id}"
            steps = [request for request in world.stepped if request.session.startswith(f"{key}/")]
            assert [request.is_last for request in steps] == [False] * (len(steps) - 1) + [True]
            assert steps[-1].end_reason == EndReason.Name(sample.episode.end_reason).removeprefix("END_REASON_").lower()
            assert sample.episode.outcome.reward == 0.25 * len(steps)
            tokens = len(sample.token_ids) + len(group.prompt_ids)
            assert tokens <= 4 * 64, "the model's context"


async def test_an_answer_that_does_not_fit_the_context_ends_the_episode_and_is_left_out(play):
    world = World(says="abcdefghij" * 8, last=1000)
    groups = await play(world, max_turns=100)
    assert set(ends(groups)) <= {"CONTEXT", "LENGTH"}
    assert "CONTEXT" in ends(groups)
    for group in groups:
        for sample in group.samples:
            assert [span.kind for span in sample.spans] == [SPAN_KIND_POLICY]
    closing = [request for request in world.stepped if request.end_reason == "context"]
    assert {(request.assistant.finish, request.assistant.text, request.turn) for request in closing} == {("none", "", 1)}


async def test_the_last_allowed_turn_may_be_the_one_that_ends_the_episode(play):
    groups = await play(World(last=2), max_turns=2)
    assert set(ends(groups)) <= {"ENVIRONMENT_DONE", "LENGTH"}
    finished = {sample.finish_reason for group in groups for sample in group.samples if sample.episode.end_reason != END_REASON_LENGTH}
    assert finished == {FINISH_REASON_STOP}, "it is not masked as one that was cut off"


async def test_no_reward_is_a_failure_and_not_zero_unless_a_scorer_gives_one(play):
    def hook(world, request):
        return StepResponse(status=ENVIRONMENT_STATUS_OK, done=True) if hasattr(request, "assistant") else None

    groups = await play(World(hook=hook))
    assert ends(groups) == ["FAILED"] * 6
    assert "gave no reward; return one with its last answer" in groups[0].samples[0].episode.outcome.reason
    scored = await play(World(hook=hook), reward={"service": "grpc://scorer:1"})
    assert {sample.episode.outcome.status for group in scored for sample in group.samples} == {REWARD_STATUS_OK}


async def test_the_first_messages_of_the_environment_take_the_place_of_the_rows_prompt(play):
    groups = await play(World(first="gfed"))
    assert [np.frombuffer(group.prompt_ids, "<i4").tolist() for group in groups] == [[9, 8, 7, 6]] * 2
    assert [group.prompt_text for group in groups] == ["gfed"] * 2


async def test_a_group_whose_episodes_begin_differently_is_the_environments_fault(play):
    def hook(world, request):
        if hasattr(request, "assistant"):
            return
        world.first = "ab" if request.episode_id.endswith(".1") else "cd"
        return

    presence = WorkerPresence(worker="worker", role="rollout", incarnation="1")
    with pytest.raises(EnvironmentFaultError, match="begins the episodes of group 0 with different messages"):
        await play(World(hook=hook), presence=presence)
    assert presence.fatal


async def test_held_out_rows_are_played_greedily_once(play):
    world = World()
    groups = await play(world, kind=TaskKind.TASK_KIND_EVALUATION)
    assert [len(group.samples) for group in groups] == [1, 1]
    assert {request.seed for request in world.opened} == {environment_seed(0, "evaluation", index) for index in (0, 1)}


async def test_a_cancelled_task_leaves_no_episode_behind(play):
    reached = asyncio.Event()

    def hook(world, request):
        reached.set()
        return OpenResponse(status=ENVIRONMENT_STATUS_ERROR, reason="away", is_away=True)

    playing = asyncio.create_task(play(World(hook=hook)))
    await reached.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing

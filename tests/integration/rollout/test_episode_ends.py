"""Each limit alone ends an episode in its own way, at the same token whenever it is played. The policy's turns are given."""

import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from gradbus.v1.environment_service_pb2 import ENVIRONMENT_STATUS_OK, DescribeResponse, StepResponse, Tool
from gradbus.v1.episode_pb2 import EndReason
from gradbus_rollout.engines.base import Completion, GroupCompletion, TokenSpan

from .conftest import NEW_TOKENS, make_model
from .test_episodes import World

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghij", "(", ")"]
EPISODES = 6
NUMBER = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'


class Policy:
    """In place of an engine: every turn is `says`, as far as there is room for it."""

    name, version = "given turns", 4

    def __init__(self):
        self.says, self.rooms = "", []

    async def generate(self, groups):
        return [GroupCompletion(group.key, tuple(self.turn(group) for _ in group.seeds)) for group in groups]

    def turn(self, group):
        room = min(NEW_TOKENS, group.max_new_tokens or NEW_TOKENS)
        self.rooms.append(group.max_new_tokens)
        ids = tuple(WORDS.index(word) for word in self.says)[:room]
        finish = "stop" if len(ids) == len(self.says) < NEW_TOKENS else "length"
        return Completion(ids, np.full(len(ids), -1.0, "<f4").tobytes(), (TokenSpan(0, len(ids), self.version),), finish)


class ToolWorld(World):
    """Has a tool, `a`."""

    async def Describe(self, request, context):  # noqa: N802 - named by gRPC
        return DescribeResponse(name="world", digest="sha256:w", tools=[Tool(name="a", description="Asks.", parameters_json=NUMBER)])


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """The tiny model with brackets among its words: calls can be written."""
    folder = tmp_path_factory.mktemp("model")
    make_model(0).save_pretrained(folder)
    tokenizer = RawTokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>").save_pretrained(folder)
    return folder


@pytest.fixture
def episode_engine():
    return Policy()


def silent(_world, request):
    """The world has nothing to say to a turn."""
    return StepResponse(status=ENVIRONMENT_STATUS_OK, reward=0.25) if hasattr(request, "assistant") else None


@pytest.mark.parametrize(
    ("end", "says", "world", "limits", "turns", "drawn"),
    [
        ("answered", "c", {"hook": silent}, {}, 1, 1),
        ("environment_done", "c", {"last": 2}, {}, 2, 2),
        ("max_turns", "cd", {}, {"max_turns": 3}, 3, 6),
        ("max_tokens", "cd", {}, {"max_tokens": 4}, 2, 4),  # nothing is left for another turn
        ("max_tokens", "cd", {}, {"max_tokens": 5}, 3, 5),  # one token is left of two
        ("context", "c", {"says": "abcdefghij"}, {}, None, None),
        ("length", "c" * NEW_TOKENS, {}, {}, 1, NEW_TOKENS),
        ("invalid_calls", "b()", {}, {"invalid_calls": 3}, 3, 9),  # no tool has this name
        ("invalid_calls", "a(", {}, {"invalid_calls": 2}, 2, 4),  # no call can be read
    ],
)
async def test_a_limit_alone_has_an_end_of_its_own(play, episode_engine, end, says, world, limits, turns, drawn):
    episode_engine.says = says
    seen = []
    for _ in range(2):
        played = ToolWorld(**({"last": 1000} | world))
        groups = await play(played, **({"max_turns": 1000} | limits))
        samples = [sample for group in groups for sample in group.samples]
        assert [EndReason.Name(sample.episode.end_reason) for sample in samples] == [f"END_REASON_{end.upper()}"] * EPISODES
        if end not in ("answered", "environment_done"):  # of these the world knows
            assert [request.end_reason for request in played.stepped if request.is_last] == [end] * EPISODES
        if turns is not None:
            assert {len(sample.episode.turns) for sample in samples} == {turns}
            assert {sum(turn.end - turn.start for turn in sample.episode.turns) for sample in samples} == {drawn}
        seen.append([(sample.token_ids, len(sample.episode.turns), sample.episode.outcome.reward) for sample in samples])
    assert seen[0] == seen[1]
    assert min(room for room in episode_engine.rooms if room is not None) >= 1, "no turn begins without room"

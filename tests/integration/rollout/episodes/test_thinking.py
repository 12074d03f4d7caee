"""Episodes of a policy that thinks, with a template that removes old thinking: what the engine reads, and what is trained."""

import pytest
import torch
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gradbus.formats.tokens import unpack_ids, unpack_logprobs
from gradbus_rollout.engines.base import PromptGroup
from tests.integration.rollout.conftest import LETTERS
from tests.integration.rollout.test_agents import Agent, after, conversation, sequences
from tests.integration.rollout.test_episodes import World

WORDS = ["<pad>", "<eos>", "<unk>", *LETTERS, "\n", "<think>", "</think>", "<user>"]
EOS, LINE, THOUGHT, USER = (WORDS.index(word) for word in ("<eos>", "\n", "</think>", "<user>"))
TEMPLATE = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<user>' + m.content }}{% elif loop.index0 < ns.last %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}{{ '<eos>' }}{% endfor %}"
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A model that draws an end of thinking in one of seventeen tokens."""
    folder = tmp_path_factory.mktemp("thinks")
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen2Config(vocab_size=len(WORDS), max_position_embeddings=128, initializer_range=0.3, eos_token_id=1, pad_token_id=0, **sizes)
    Qwen2ForCausalLM(config).eval().save_pretrained(folder)
    tokenizer = RawTokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = Split("", "isolated"), decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in ("<eos>", "<user>")])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in ("<think>", "</think>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


def answer(drawn):
    """What is left of a turn once a user speaks: the definition, token by token."""
    left = drawn
    if THOUGHT in drawn:
        left = drawn[len(drawn) - drawn[::-1].index(THOUGHT) :]
        while left[:1] == (LINE,):
            left = left[1:]
    return left


def closed(drawn):
    """The turn with an end token; one that ended by a letter has none."""
    return drawn if drawn[-1:] == (EOS,) else (*drawn, EOS)


def asked(text):
    """What the template writes of a user's message."""
    return (USER, *(WORDS.index(letter) for letter in text), EOS)


async def check(engine, group, sample, contexts):
    """Each turn is what the engine draws after its context, and is trained once; returns the drawn ids of each."""
    found, turns = sequences(group, sample), []
    for turn, context in zip(sample.episode.turns, contexts(turns), strict=False):
        prompt, ids, logprobs, _ = found[turn.sequence]
        assert (*prompt, *ids[: turn.start]) == context
        (drawn,) = await engine.generate([PromptGroup("again", context, (turn.seed,))])
        (completion,) = drawn.completions
        assert completion.token_ids == ids[turn.start : turn.end]
        assert unpack_logprobs(completion.logprobs) == logprobs[turn.start : turn.end]
        turns.append(ids[turn.start : turn.end])
    trained = sum(span.end - span.start for _, _, _, spans in found for span in spans if span.trainable)
    assert trained == sum(map(len, turns)), "each drawn token once"
    return turns


@pytest.mark.parametrize("policy", ["template", "keep"])
async def test_thinking_leaves_with_a_users_message_and_what_was_drawn_is_trained_once(play, episode_engine, policy):
    kept = policy == "keep"

    def contexts(turns):
        context = asked("ab")
        while True:
            yield context
            context = (*context, *closed(turns[-1] if kept else answer(turns[-1])), *asked("cd"))

    groups = await play(World(first="ab", says="cd", last=5), thinking=policy)
    forks = thoughts = 0
    for group in groups:
        for sample in group.samples:
            turns = await check(episode_engine, group, sample, contexts)
            went_on = turns[:-1]
            thoughts += sum(THOUGHT in turn for turn in went_on)
            forks += len(sample.forks)
            assert len(sample.forks) == (0 if kept else sum(answer(turn) != turn for turn in went_on))
            numbers = [turn.after_turn if turn.HasField("after_turn") else None for turn in sample.episode.turns]
            assert numbers == [None, *(at if not kept and answer(turn) != turn else None for at, turn in enumerate(went_on))]
            assert sample.episode.outcome.reward == 0.25 * len(turns)
    assert thoughts, "the policy has thought"
    assert bool(forks) == (not kept)


async def test_an_agent_that_goes_on_from_any_turn_has_no_old_thinking_before_it(play, episode_engine):
    """From the last turn, from the first one again, and in a conversation of its own."""
    agent = Agent([after(None, "cd"), after(0, "ef"), after(2, "ab"), conversation("ij"), after(None, "ab")])

    def contexts(turns):
        first = asked("ab")
        yield first
        begun = (*first, *closed(answer(turns[0])))
        yield (*begun, *asked("cd"))
        yield (*begun, *asked("ef"))
        yield (*begun, *asked("ef"), *closed(answer(turns[2])), *asked("ab"))
        yield asked("ij")
        yield (*asked("ij"), *closed(answer(turns[4])), *asked("ab"))

    groups = await play(agent, agent="pull", thinking="template", max_turns=16)
    thoughts = 0
    for group in groups:
        for sample in group.samples:
            turns = await check(episode_engine, group, sample, contexts)
            thoughts += sum(THOUGHT in turn for turn in turns)
            for request in agent.told[f"train.4.{sample.sample_id}/0"]:
                assert unpack_ids(request.assistant.drawn.token_ids) in turns
    assert thoughts, "the policy has thought"

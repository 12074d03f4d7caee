"""A run of a policy that thinks, whose template removes old thinking: its episodes have several sequences, and one weight."""

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from gradbus.client import document
from gradbus.errors import SpecError

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefgh", "\n", "<think>", "</think>", "<user>"]
THOUGHT = WORDS.index("</think>")
TEMPLATE = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<user>' + m.content }}{% elif loop.index0 < ns.last %}"
    "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}{{ '<eos>' }}{% endfor %}"
)
SOURCE = """
class Environment:
    def reset(self, item, seed):
        self.turns = 0

    def step(self, text):
        self.turns += 1
        return {"message": "cd", "reward": len(set(text)) / 16}
"""


@pytest.fixture
def thinks(tmp_path):
    """The folder of a model that draws an end of thinking in one of fifteen tokens."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in ("<eos>", "<user>")])
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in ("<think>", "</think>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(tmp_path / "thinks")
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=len(WORDS), max_position_embeddings=128, eos_token_id=1, pad_token_id=0, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "thinks")
    return tmp_path / "thinks"


@pytest.fixture
def thinking_run(episodes, thinks, rows):
    """Gives the spec of a run with a policy."""

    def give(policy):
        section = {"source": SOURCE, "max_turns": 6} | ({"thinking": policy} if policy else {})
        on_policy = {"max_staleness": 0, "groups_per_step": 2, "steps": 2}
        body = episodes(numerics="batch_invariant", schedule=on_policy, environment=section)
        body["model"] = {"path": str(thinks)}
        body["data"] = {"train": rows([{"prompt": [{"role": "user", "content": word}]} for word in ("ab", "ba", "gh", "hg")])}
        body["rollout"] |= {"max_new_tokens": 8, "stop_token_ids": [1, 3, 4, 5, 6]}
        body["algorithm"] = {"truncated": "keep"}
        return body

    return give


@pytest.mark.parametrize("policy", ["template", "keep"])
def test_each_drawn_token_is_trained_once_by_the_log_probability_that_it_was_drawn_with(lab, thinking_run, policy):
    run = lab.train(thinking_run(policy))
    steps = lab.events(run["id"], "metrics")
    assert [(step["noop"], step["logprob_diff"]) for step in steps] == [(False, 0.0), (False, 0.0)]
    forks = 0
    for sample in document(lab.client.samples_page(run["id"], limit=1000, include="tokens"))["data"]:
        sequences = [sample["tokens"], *sample["tokens"]["forks"]]
        turns = sample["episode"]["turns"]
        trained = [(span["sequence"], span["start"], span["end"]) for span in sample["versions"] if span["trainable"]]
        assert trained == [(turn["sequence"], turn["start"], turn["end"]) for turn in turns]
        forks += len(sample["tokens"]["forks"])
        for turn in turns:
            if turn["after_turn"] is not None:
                former = turns[turn["after_turn"]]
                drawn = sequences[former["sequence"]]["ids"][former["start"] : former["end"]]
                assert THOUGHT in drawn
                assert THOUGHT not in sequences[turn["sequence"]]["prompt_ids"]
    assert bool(forks) == (policy == "template")


def test_a_run_that_does_not_say_what_becomes_of_thinking_is_refused(lab, thinking_run):
    with pytest.raises(SpecError) as refused:
        lab.submit(thinking_run(None))
    (fault,) = refused.value.faults
    assert fault.path == "environment.thinking"
    assert "it removes the thinking of turns before messages of user" in fault.message

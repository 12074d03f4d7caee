"""Without a chat template: what is said is all that is written, and a call is a whole turn."""

import json
import string

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from gradbus.errors import DatasetError
from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.turns import ChatCall, ChatMessage, ParsedCall, ParsedTurn

WORDS = ["<pad>", "<eos>", "<unk>", *string.ascii_lowercase, *string.digits, *'(),=*<>"_.[]{}: -']
EOS = 1


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, turn_settings):
    """A tokenizer of characters."""
    folder = tmp_path_factory.mktemp("plain")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.decoder = Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>").save_pretrained(folder)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 80, "max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": EOS}))
    (folder / "model.safetensors").touch()
    return PromptEncoder(folder, PromptLimits(8), turns=turn_settings())


def ids_of(text):
    return tuple(map(WORDS.index, text))


def parsed(encoder, text, *, stopped=True):
    return encoder.grammar.parse((*ids_of(text), EOS), stopped=stopped)


def call(name, arguments, status="ok"):
    return ParsedTurn("", (ParsedCall(name, arguments, status),))


def test_a_conversation_is_what_its_messages_say(encoder):
    messages = [ChatMessage("system", "ab"), ChatMessage("user", "12*3=")]
    assert encoder.encode_conversation(messages) == ids_of("ab12*3=")


def test_a_call_in_a_history_is_written_as_it_is_read(encoder):
    calls = (ChatCall("mul", '{"b": 2, "a": "x"}', "c0.0"), ChatCall("mul", "[1]"), ChatCall("", "mul(1", "c0.1"))
    messages = [ChatMessage("user", "q"), ChatMessage("assistant", "so:", calls=calls), ChatMessage("tool", "6", "c0.0", "mul")]
    assert encoder.encode_conversation(messages) == ids_of('qso:mul(2, "x")mul([1])mul(16')


def test_tools_of_a_conversation_are_not_written_and_checked(encoder):
    messages = [ChatMessage("user", "q")]
    assert encoder.encode_conversation(messages, '[{"name": "f"}]') == ids_of("q")
    with pytest.raises(DatasetError, match="the tools of a conversation are no list"):
        encoder.encode_conversation(messages, "[1]")
    assert encoder.grammar.parse(ids_of("f(1)"), stopped=True, tools_json='[{"name": "f"}]').calls[0].status == "malformed"


def test_nothing_is_inserted_between_a_turn_and_what_follows(encoder):
    follows = [ChatMessage("tool", "40678", "c0", "mul"), ChatMessage("user", "so=")]
    for last in (EOS, 5):
        extension = encoder.grammar.extension(last, follows)
        assert extension.token_ids == ids_of("40678so=")
        assert extension.spans == ((0, 5, "tool"), (5, 8, "user"))
    assert encoder.grammar.extension(5, []).spans == ()


def test_the_text_of_a_control_token_stays_text(encoder):
    assert EOS not in encoder.grammar.extension(EOS, [ChatMessage("tool", "a<eos>b")]).token_ids
    assert EOS not in encoder.encode_conversation([ChatMessage("user", "a<eos>b")])
    assert encoder.grammar.extension(EOS, [ChatMessage("tool", "a<eos>b")]).token_ids == ids_of("a<eos>b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mul(473,86)", call("mul", '{"a":473,"b":86}')),
        (" mul(473, 86) ", call("mul", '{"a":473,"b":86}')),
        ('look_up("fox")', call("look_up", '{"word":"fox"}')),
        ('look_up("f(o)x",[1,{"a":2}])', call("look_up", '{"depth":[1,{"a":2}],"word":"f(o)x"}')),
        ("mul()", call("mul", "{}")),
        ("div(1,2)", call("div", "[1,2]", "unknown_tool")),
        ("mul(473,86", call("", "mul(473,86", "malformed")),
        ("mul(473,086)", call("", "mul(473,086)", "malformed")),
        ("mul(1,2,3)", call("", "mul(1,2,3)", "malformed")),
        ("mul(1,2)=2", call("", "mul(1,2)=2", "malformed")),
        ("mul(1)(2)", call("", "mul(1)(2)", "malformed")),
        ("mul(a)", call("", "mul(a)", "malformed")),
        ("mul", ParsedTurn("mul")),
        ("f(x)", ParsedTurn("f(x)")),
        ("40678", ParsedTurn("40678")),
        ("(1,2)", ParsedTurn("(1,2)")),
        ("", ParsedTurn("")),
    ],
)
def test_a_call_is_a_whole_turn(encoder, text, expected):
    assert parsed(encoder, text) == expected


def test_nothing_is_a_call_in_a_turn_that_was_cut_off(encoder):
    assert parsed(encoder, "mul(473,86)", stopped=False) == ParsedTurn("mul(473,86)")

"""Harmony's channels: a message to a function is a call."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.turns import ParsedCall, ParsedTurn

ARGUMENTS = '{ "a": 1.50,"b" :2}'
CALL = "<|channel|>commentary to=functions.mul <|constrain|>json<|message|>"
THOUGHT = "<|channel|>analysis<|message|>I multiply.<|end|><|start|>assistant"


@pytest.fixture(scope="module", params=["gpt_oss", "chatml"])
def parse(request, families, turn_settings):
    """With marks of their own ids, and without."""
    family = families(request.param)
    grammar = PromptEncoder(family.folder, PromptLimits(8), turns=turn_settings(parser="gpt_oss")).grammar
    return lambda text: grammar.parse((*family.ids(text), family.end_id), stopped=True)


@pytest.mark.parametrize(
    "header",
    [
        CALL,
        CALL.replace(" <|constrain|>json", ""),
        CALL.replace(" <|constrain|>", " "),
        " to=functions.mul<|channel|>commentary json<|message|>",
        " to=functions.mul<|channel|>commentary <|constrain|>json<|message|>",
        THOUGHT + CALL,
        THOUGHT + " to=functions.mul<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.mul <|constrain|>json<|message|>",
    ],
)
def test_arguments_stay_as_they_were_drawn(parse, header):
    assert parse(header + ARGUMENTS) == ParsedTurn("", (ParsedCall("mul", ARGUMENTS, "ok"),))


def test_what_is_said_is_not_what_is_thought(parse):
    final = "<|channel|>final<|message|>It is 6."
    assert parse(THOUGHT + final) == ParsedTurn("It is 6.")
    preamble = "<|channel|>commentary<|message|>I call it.<|end|><|start|>assistant"
    assert parse(THOUGHT + preamble + CALL + "{}") == ParsedTurn("I call it.", (ParsedCall("mul", "{}", "ok"),))


def test_a_recipient_that_is_no_tool_is_named(parse):
    assert parse(CALL.replace("mul", "div") + "{}").calls == (ParsedCall("div", "{}", "unknown_tool"),)
    assert parse(CALL.replace("functions.mul", "browser.open") + "{}").calls == (ParsedCall("browser.open", "{}", "unknown_tool"),)


def test_several_calls_of_a_turn_come_in_their_order(parse):
    turn = parse(CALL + '{"a": 1}<|call|><|start|>assistant' + CALL + '{"a": 2}')
    assert [call.arguments_json for call in turn.calls] == ['{"a": 1}', '{"a": 2}']


def test_the_whole_text_of_a_malformed_call_is_kept(parse, broken_calls):
    bodies = [body for body in broken_calls("arguments") if not valid_object(body)] + [ARGUMENTS[:n] for n in range(1, len(ARGUMENTS))]
    headers = [CALL[: -len("<|message|>")], "<|channel|> to=functions.mul", "<|channel|>to=functions.mul<|channel|>"]
    assert len(bodies) + len(headers) >= 60
    for text in [CALL + body for body in bodies] + headers:
        assert parse(text).calls == (ParsedCall("", text, "malformed"),), text[:100]
        assert parse(THOUGHT + text).calls[-1].status == "malformed", text[:100]


def valid_object(body):
    """Whether the arguments of a call may be that: names and kinds are not asked for, as they are for calls that are one object."""
    from gradbus.tokenizer.grammar.parsers.raw_json import members

    try:
        members(body)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "text", ["", "the fox", "<|message|>", "<|channel|>", "<|end|>", "<|channel|>final", "<|start|>", "I say to=functions.mul"]
)
def test_what_is_no_message_is_no_call(parse, text):
    assert parse(text) == ParsedTurn("" if "<" in text else text)


PARTS = [
    "<|start|>",
    "assistant",
    "<|channel|>",
    "final",
    "commentary",
    " to=functions.mul",
    "<|message|>",
    "{}",
    "<|end|>",
    "<|call|>",
    "x",
]


@given(st.lists(st.sampled_from(PARTS), max_size=20).map("".join))
def test_whatever_is_drawn_is_parsed(parse, text):
    turn = parse(text)
    assert len(turn.calls) <= text.count("to=functions.mul")
    assert all(call.arguments_json.strip() == "{}" for call in turn.calls if call.status == "ok")


@given(st.lists(st.integers(0, 520), max_size=60))
def test_ids_that_no_text_has_are_parsed(families, drawn):
    families("gpt_oss").grammar.parse(drawn, stopped=True)

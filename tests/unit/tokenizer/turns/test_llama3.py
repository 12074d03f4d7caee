"""A call is a whole turn, with the tag of Llama 3 or without."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits
from gradbus.tokenizer.turns import ParsedCall, ParsedTurn

GOOD = '{"name": "mul", "parameters": {"a": 1}}'


@pytest.fixture(scope="module", params=["llama3", "chatml"])
def parse(request, families, turn_settings):
    """With the tag as a token, and without."""
    family = families(request.param)
    grammar = PromptEncoder(family.folder, PromptLimits(8), turns=turn_settings(parser="llama3")).grammar
    return lambda text: grammar.parse((*family.ids(text), family.end_id), stopped=True)


@pytest.mark.parametrize("tag", ["", "<|python_tag|>"])
@pytest.mark.parametrize("around", ["", "\n", "  "])
def test_parameters_stay_as_they_were_drawn(parse, tag, around):
    parameters = '{ "word":"f\\u006fx",  "depth" : 1.50 }'
    turn = parse(f'{tag}{around}{{"name" : "look_up", "parameters":{parameters}}}{around}')
    assert turn == ParsedTurn("", (ParsedCall("look_up", parameters, "ok"),))


def test_a_call_may_say_its_type_and_name_a_tool_that_does_not_exist(parse):
    call = {"type": "function", "name": "div", "parameters": {}}
    assert parse(json.dumps(call)).calls == (ParsedCall("div", "{}", "unknown_tool"),)


@pytest.mark.parametrize(
    "text", ["", "the fox", '{"answer": 3}', f"I call {GOOD}", "[1]", "{", "mul(1)", f"[{GOOD}]", "{}", '"name": "mul"']
)
def test_other_text_is_no_call(parse, text):
    assert parse(text) == ParsedTurn(text)


def test_the_whole_text_of_a_malformed_call_is_kept(parse, broken_calls):
    bodies = [body for body in broken_calls("parameters") if not body.startswith("\ufeff")]
    assert len(bodies) >= 60
    for body in bodies:
        assert parse(f"<|python_tag|>{body}") == ParsedTurn("", (ParsedCall("", body.strip(), "malformed"),)), body[:60]
        assert parse(body).calls in {(), (ParsedCall("", body.strip(), "malformed"),)}, body[:60]
    assert (
        parse(GOOD[:-1]).calls[0].status
        == parse(GOOD + ", then").calls[0].status
        == parse(GOOD + "; " + GOOD).calls[0].status
        == "malformed"
    )


@given(st.lists(st.sampled_from(["<|python_tag|>", GOOD, '{"name":', "x", "\n", "}", '"mul"', "{"]), max_size=12).map("".join))
def test_whatever_is_drawn_is_parsed(parse, text):
    turn = parse(text)
    assert len(turn.calls) <= 1
    assert turn.text == "" or not turn.calls


@given(st.lists(st.integers(0, 520), max_size=40))
def test_ids_that_no_text_has_are_parsed(families, drawn):
    family = families("llama3")
    tag = family.tokenizer.convert_tokens_to_ids("<|python_tag|>")
    assert family.grammar.parse((tag, *drawn), stopped=True).calls[0].status == "malformed"
    family.grammar.parse(drawn, stopped=True)

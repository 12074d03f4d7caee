"""Calls between tags, with a JSON object: by the ids of the tags, or by text where the tokenizer has no such tokens."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.tokenizer.turns import ParsedCall, ParsedTurn


@pytest.fixture(scope="module", params=["qwen", "chatml"])
def parse(request, families):
    """With tags of their own ids, and without; nothing but `<|im_end|>` is special in what is parsed."""
    family = families(request.param)
    return lambda text: family.grammar.parse((*family.ids(text), family.end_id), stopped=True)


def tagged(body):
    return f"<tool_call>{body}</tool_call>"


def test_arguments_stay_as_they_were_drawn(parse):
    arguments = '{ "word":"f\\u006fx",  "depth" : 1.50, "more": [true,\nnull] }'
    turn = parse(f'I look.\n{tagged(f""" {{"arguments":{arguments} , "name" :"look_up"}} """)}\n')
    assert turn == ParsedTurn("I look.\n\n", (ParsedCall("look_up", arguments, "ok"),))


def test_several_calls_come_in_their_order(parse):
    calls = [tagged(json.dumps({"name": "mul", "arguments": {"a": n}})) for n in range(9)]
    turn = parse("a" + "b".join(calls) + "c")
    assert turn.text == "a" + "b" * 8 + "c"
    assert [json.loads(call.arguments_json)["a"] for call in turn.calls] == list(range(9))


def test_a_tool_that_does_not_exist_is_named(parse):
    turn = parse(tagged('{"name": "div", "arguments": {}}'))
    assert turn.calls == (ParsedCall("div", "{}", "unknown_tool"),)


GOOD = '{"name": "mul", "arguments": {"a": 1}}'


def test_the_whole_text_of_a_malformed_call_is_kept(parse, broken_calls):
    assert len(broken_calls("arguments")) >= 60
    for body in broken_calls("arguments"):
        turn = parse(f"a{tagged(body)}b{tagged(GOOD)}")
        assert turn.text == "ab", body[:60]
        assert turn.calls == (ParsedCall("", body, "malformed"), ParsedCall("mul", '{"a": 1}', "ok")), body[:60]


def test_a_call_without_its_end_is_malformed(parse):
    assert parse(f"a<tool_call>{GOOD}") == ParsedTurn("a", (ParsedCall("", GOOD, "malformed"),))
    assert parse("a<tool_call>").calls == (ParsedCall("", "", "malformed"),)
    assert parse(f"</tool_call>{GOOD}").calls == ()


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", GOOD, '{"name"', "x", "\n", "}"]), max_size=20).map("".join))
def test_whatever_is_drawn_is_parsed(parse, text):
    turn = parse(text)
    assert len(turn.calls) <= text.count("<tool_call>")
    assert all(call.arguments_json == '{"a": 1}' for call in turn.calls if call.status == "ok")


@given(st.lists(st.integers(0, 520), max_size=40))
def test_ids_that_no_text_has_are_parsed(families, drawn):
    family = families("qwen")
    begin, end = family.tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    turn = family.grammar.parse((begin, *drawn, end, *drawn, begin), stopped=True)
    assert turn.calls
    assert all(call.status == "malformed" for call in turn.calls)


def test_the_text_of_a_tag_is_none_where_the_tokenizer_has_the_token(families):
    family = families("qwen")
    drawn = [token for character in tagged(GOOD) for token in family.ids(character)]
    turn = family.grammar.parse((*drawn, family.end_id), stopped=True)
    assert turn == ParsedTurn(tagged(GOOD))


def test_nothing_is_a_call_in_a_turn_that_was_cut_off(families):
    family = families("qwen")
    assert family.grammar.parse(family.ids(tagged(GOOD)), stopped=False) == ParsedTurn(tagged(GOOD))


def test_without_tools_there_are_no_calls(families, turn_settings):
    from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits

    family = families("qwen")
    grammar = PromptEncoder(family.folder, PromptLimits(8), turns=turn_settings(tools_json="[]")).grammar
    assert grammar.parse(family.ids(tagged(GOOD)), stopped=True) == ParsedTurn(tagged(GOOD))

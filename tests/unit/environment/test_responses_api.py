"""Rows of NeMo Gym become conversations and tools, and turns become responses."""

import pytest

from gradbus_environment.answers import AnswerError
from gradbus_environment.contract import Move
from gradbus_environment.worlds.nemo_gym.responses_api import messages_of, output_of, parameters_of, response_of, tools_of

PARTS = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]


@pytest.mark.parametrize(
    ("parameters", "messages"),
    [
        ({"input": "hi"}, [("user", "hi")]),
        ({"input": "hi", "instructions": "Be brief."}, [("system", "Be brief."), ("user", "hi")]),
        ({"input": [{"role": "developer", "content": "x", "type": "message"}]}, [("system", "x")]),
        ({"input": [{"role": "user", "content": PARTS}]}, [("user", "ab")]),
        ({"input": []}, []),
    ],
)
def test_the_conversation_of_a_row(parameters, messages):
    assert [(one["role"], one["content"]) for one in messages_of(parameters)] == messages


PICTURE = {"type": "input_image", "image_url": "x"}


@pytest.mark.parametrize("item", [{"type": "reasoning"}, {"role": "user", "content": 7}, {"role": "user", "content": [PICTURE]}, "x"])
def test_an_item_that_is_no_message_of_text_is_refused(item):
    with pytest.raises(AnswerError, match="no message of text"):
        messages_of({"input": [item]})


def test_a_row_without_parameters_begins_with_its_prompt():
    assert parameters_of({"prompt": "hi", "answer": 7}) == {"input": "hi"}
    for row in ({}, {"prompt": 7}, {"responses_create_params": None}, {"responses_create_params": {}}):
        with pytest.raises(AnswerError, match="no responses_create_params"):
            parameters_of(row)


def test_tools_are_functions_and_may_lack_a_description_and_parameters():
    [tool] = tools_of({"tools": [{"type": "function", "name": "look", "description": None, "parameters": None}]})
    assert (tool.name, tool.description, tool.parameters_json) == ("look", "look", '{"type": "object", "properties": {}}')
    assert tools_of({}) == tools_of({"tools": None}) == []
    for tools in ({"look": {}}, ["look"], [{"type": "mcp"}], [{"type": "function"}]):
        with pytest.raises(AnswerError):
            tools_of({"tools": tools})


def move(text, *calls):
    given = [{"call_id": f"c{n}", "name": "look", "arguments": arguments, "status": status} for n, (arguments, status) in enumerate(calls)]
    return Move(2, {"text": text, "calls": given, "finish": "stop"}, is_last=False, end_reason="")


@pytest.mark.parametrize(
    ("turn", "kinds", "text"),
    [
        (move("Hm."), ["message"], "Hm."),
        (move(""), ["message"], ""),
        (move("", ("{}", "ok")), ["function_call"], None),
        (move("Hm.", ("{}", "ok"), ("<x", "malformed")), ["message", "function_call"], "Hm.\n<x"),
        (move("", ("<x", "malformed")), ["message"], "<x"),
    ],
)
def test_the_items_of_a_turn(turn, kinds, text):
    calls = [call for call in turn.assistant["calls"] if call["status"] == "ok"]
    output = output_of(turn, calls)
    assert [one["type"] for one in output] == kinds
    assert text is None or output[0]["content"][0]["text"] == text


def test_a_response_says_whether_it_was_cut_off():
    whole, cut = (response_of([], None, name="x", is_cut=is_cut) for is_cut in (False, True))
    assert (whole["incomplete_details"], whole["status"], whole["tools"]) == (None, "completed", [])
    assert (cut["incomplete_details"], cut["status"]) == ({"reason": "max_output_tokens"}, "incomplete")

"""Rows with given responses: what is a response, and what workers see of a row."""

import json

import pytest

from gradbus.errors import DatasetError
from gradbus.spec import RowColumns

CHAT = [{"role": "user", "content": "hi"}]
ANSWER = [{"role": "assistant", "content": "ho"}]


def lines(*given):
    return "".join(json.dumps(row) + "\n" for row in given).encode()


def test_workers_see_prompts_and_responses_in_the_order_of_the_columns_and_nothing_else(prompts_of):
    data = lines({"worse": "c", "q": "a", "better": "b", "note": 1})
    assert prompts_of(data, RowColumns("q", ("better", "worse"))) == [{"prompt": "a", "responses": ["b", "c"]}]


@pytest.mark.parametrize("response", ["ho", ANSWER])
def test_a_response_to_messages_is_text_or_messages(prepared, response):
    assert prepared(lines({"prompt": CHAT, "completion": response}), columns=RowColumns("prompt", ("completion",)))[0].chat


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"prompt": "a", "completions": "b"}, "did you mean 'completions'"),
        ({"prompt": "a"}, "has no column 'completion'"),
        ({"prompt": "a", "completion": ""}, "empty 'completion'"),
        ({"prompt": "a", "completion": None}, "has null as 'completion'"),
        ({"prompt": "a", "completion": 4}, "has a number as 'completion'"),
        ({"prompt": CHAT, "completion": []}, "has a list as 'completion'"),
        ({"prompt": CHAT, "completion": [{"role": "assistant"}]}, "has a list as 'completion'"),
        ({"prompt": "a", "completion": ANSWER}, "messages as 'completion' and a prompt of text"),
    ],
)
def test_a_row_without_a_response_is_refused_with_its_line(readers, row, fault):
    data = lines({"prompt": "a", "completion": "b"}, row)
    for read in readers:
        with pytest.raises(DatasetError, match=f"line 2 .*{fault}"):
            read(data, RowColumns("prompt", ("completion",)))


def test_a_pair_of_equal_responses_is_refused(prepared):
    with pytest.raises(DatasetError, match="line 1 has the same 'chosen' and 'rejected'"):
        prepared(lines({"prompt": "a", "chosen": "b", "rejected": "b"}), columns=RowColumns("prompt", ("chosen", "rejected")))


def test_a_label_is_true_or_false_and_goes_to_workers(prompts_of):
    data = lines({"prompt": "a", "completion": "b", "good": False}, {"prompt": "a", "completion": "b", "good": True})
    columns = RowColumns("prompt", ("completion",), label="good")
    assert [row["label"] for row in prompts_of(data, columns)] == [False, True]
    turns = RowColumns(conversation="messages", label="good")
    data = lines({"messages": [*CHAT, *ANSWER], "good": True})
    assert prompts_of(data, turns) == [{"prompt": CHAT, "responses": [ANSWER], "label": True}]


@pytest.mark.parametrize(
    ("label", "fault"),
    [(1, "a number"), (0.5, "a number"), ("true", "text"), (None, "null"), ([True], "a list"), ({}, "an object")],
)
def test_anything_else_is_no_label(readers, prepared, label, fault):
    data = lines({"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "b", "label": label})
    for read in readers:
        with pytest.raises(DatasetError, match=f"line 2 has {fault} as 'label'; a label is true .* or false"):
            read(data, RowColumns("prompt", ("completion",), label="label"))
    with pytest.raises(DatasetError, match=r"line 1 has no column 'good', .* data.label"):
        prepared(data, columns=RowColumns("prompt", ("completion",), label="good"))


TURNS = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant", "user", "assistant")]


def test_a_conversation_is_a_prompt_up_to_the_assistants_first_message(prompts_of, prepared):
    data = lines({"messages": TURNS})
    assert prompts_of(data, RowColumns(conversation="messages")) == [{"prompt": TURNS[:2], "responses": [TURNS[2:]]}]
    assert prepared(data, columns=RowColumns(conversation="messages"))[0].chat


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"messages": TURNS[:2]}, "conversation of line 1 has no message of the assistant"),
        ({"messages": TURNS[2:]}, "conversation of line 1 has nothing before"),
        ({"messages": "hi"}, "line 1 has text as 'messages'"),
        ({"messages": []}, "line 1 has a prompt that is a list"),
        ({"prompt": TURNS}, "line 1 has no column 'messages'"),
    ],
)
def test_what_is_no_conversation_is_refused(prepared, row, fault):
    with pytest.raises(DatasetError, match=fault):
        prepared(lines(row), columns=RowColumns(conversation="messages"))


def test_a_response_of_messages_begins_with_the_assistant(prepared):
    with pytest.raises(DatasetError, match="does not begin with a message of the assistant"):
        prepared(lines({"prompt": CHAT, "completion": CHAT}), columns=RowColumns("prompt", ("completion",)))

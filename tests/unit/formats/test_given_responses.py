"""Rows with given responses: what is a response, and what workers see of a row."""

import json

import pytest

from gradbus.errors import DatasetError
from gradbus.formats.jsonl import inspect, prompts_object, rows

CHAT = [{"role": "user", "content": "hi"}]
ANSWER = [{"role": "assistant", "content": "ho"}]


def lines(*given):
    return "".join(json.dumps(row) + "\n" for row in given).encode()


def test_workers_see_prompts_and_responses_in_the_order_of_the_columns_and_nothing_else():
    data = lines({"worse": "c", "q": "a", "better": "b", "note": 1})
    assert rows(prompts_object(data, "q", ("better", "worse"))) == [{"prompt": "a", "responses": ["b", "c"]}]


@pytest.mark.parametrize("response", ["ho", ANSWER])
def test_a_response_to_messages_is_text_or_messages(response):
    assert inspect(lines({"prompt": CHAT, "completion": response}), "prompt", ("completion",)).chat


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
def test_a_row_without_a_response_is_refused_with_its_line(row, fault):
    data = lines({"prompt": "a", "completion": "b"}, row)
    for read in (inspect, prompts_object):
        with pytest.raises(DatasetError, match=f"line 2 .*{fault}"):
            read(data, "prompt", ("completion",))


def test_a_pair_of_equal_responses_is_refused():
    with pytest.raises(DatasetError, match="line 1 has the same 'chosen' and 'rejected'"):
        inspect(lines({"prompt": "a", "chosen": "b", "rejected": "b"}), "prompt", ("chosen", "rejected"))

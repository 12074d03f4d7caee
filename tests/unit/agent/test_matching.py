"""Which turn a request goes on from."""

import json

import pytest

from gradbus_agent.contract import Call, ChatMessage, ChatRequest, canonical
from gradbus_agent.matching import Histories, Question

TOOLS = json.dumps([{"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}])


def user(text):
    return ChatMessage("user", text)


def said(text, *calls):
    return ChatMessage("assistant", text, tuple(Call(f"c0.{n}", "look", arguments) for n, arguments in enumerate(calls)))


def request(*messages, tools=""):
    return Question.of(ChatRequest(messages, tools))


@pytest.fixture
def histories():
    """Of the turns 0: a, b. 1: a, b, c, d. 2: a, b, x, d (from turn 0 too). 3: a, b again."""
    made = Histories()
    made.add(0, request(user("a")), said("b"))
    made.add(1, request(user("a"), said("b"), user("c")), said("d"))
    made.add(2, request(user("a"), said("b"), user("x")), said("d"))
    return made


@pytest.mark.parametrize(
    ("messages", "turn", "following"),
    [
        ([user("a")], None, 0),
        ([user("a"), said("b"), user("c")], 0, 1),
        ([user("a"), said("b"), user("c"), user("c")], 0, 2),
        ([user("a"), said("b"), user("c"), said("d"), user("e")], 1, 1),
        ([user("a"), said("b"), user("x"), said("d"), user("e")], 2, 1),
        ([user("a"), said("b"), user("y"), said("d"), user("e")], None, 0),
        ([user("a"), said("b"), said("b"), user("c")], None, 0),
        ([user("a"), said("b"), user("c"), ChatMessage("system", "s")], None, 0),
        ([user("a"), said("b")], None, 0),
        ([user("b"), said("a"), user("c")], None, 0),
        ([], None, 0),
    ],
)
def test_the_longest_history_that_the_messages_begin_with_is_found(histories, messages, turn, following):
    match = histories.find(request(*messages))
    assert (match.turn, len(match.following)) == (turn, following)
    assert list(match.following) == messages[len(messages) - following :]


def test_of_equal_histories_the_newest_turn_is_found(histories):
    histories.add(3, request(user("a")), said("b"))
    assert histories.find(request(user("a"), said("b"), user("c"))).turn == 3


def test_other_tools_are_another_conversation(histories):
    assert histories.find(request(user("a"), said("b"), user("c"), tools=TOOLS)).turn is None
    histories.add(4, request(user("a"), tools=TOOLS), said("b"))
    assert histories.find(request(user("a"), said("b"), user("c"), tools=TOOLS)).turn == 4
    written_again = json.dumps(json.loads(TOOLS), indent=1, sort_keys=True)
    assert histories.find(request(user("a"), said("b"), user("c"), tools=written_again)).turn == 4


@pytest.mark.parametrize(
    ("drawn", "sent", "is_same"),
    [
        ('{"a":1,"b":[true,null]}', '{ "b": [true, null], "a": 1 }', True),
        ('{"a": 1.0}', '{"a": 1}', True),
        ('{"a": "\\u00e9"}', '{"a": "é"}', True),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": true}', '{"a": 1}', False),
        ("{broken", "{broken", True),
        ("{broken", "{ broken", False),
        ("[" * 100_000, "[" * 100_000, True),
        ("[" * 9_000 + "]" * 9_000, "[" * 9_000 + " " + "]" * 9_000, False),
        ("[" + "1," * 17_000 + "1]", "[" + "1," * 17_000 + "1]", True),
        ("[" + "1," * 17_000 + "1]", "[" + "1," * 17_000 + " 1]", False),
    ],
)
def test_arguments_are_compared_as_values(drawn, sent, is_same):
    histories = Histories()
    histories.add(0, request(user("a")), said("", drawn))
    result = ChatMessage("tool", "r", call_id="c0.0")
    assert (histories.find(request(user("a"), said("", sent), result)).turn == 0) is is_same


def test_calls_are_told_apart_by_their_ids():
    histories = Histories()
    histories.add(0, request(user("a")), said("", "{}"))
    other = ChatMessage("assistant", "", (Call("c9.9", "look", "{}"),))
    assert histories.find(request(user("a"), other, ChatMessage("tool", "r", call_id="c9.9"))).turn is None


def test_text_cannot_pass_for_the_border_of_two_messages():
    histories = Histories()
    histories.add(0, request(user('a"],["user","b')), said("c"))
    assert histories.find(request(user("a"), user("b"), said("c"), user("d"))).turn is None


def test_a_value_has_one_form():
    assert canonical({"b": 2.0, "a": [1e300, -0.0, 1.5]}) == canonical({"a": [1e300, 0, 1.5], "b": 2})

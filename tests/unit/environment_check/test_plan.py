"""The turns that a check plays."""

import json

from gradbus.environment_check.plan import plan_episode
from gradbus.v1.environment_service_pb2 import Tool

TOOLS = [
    Tool(name=name, parameters_json=json.dumps({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}))
    for name in ("look", "take", "drop")
]


def test_a_plan_is_a_function_of_number_item_and_tools():
    assert plan_episode(3, {"word": "sun"}, TOOLS) == plan_episode(3, {"word": "sun"}, TOOLS)
    assert plan_episode(3, {"word": "sun"}, TOOLS) != plan_episode(4, {"word": "sun"}, TOOLS)


def test_every_tool_is_called_and_every_way_of_a_bad_call_occurs():
    calls = [call for number in range(20) for turn in plan_episode(number, {}, TOOLS).turns for call in turn.assistant.calls]
    assert {call.name for call in calls} == {"look", "take", "drop", "no_such_tool", ""}
    assert {call.status for call in calls} == {1, 2, 3}


def test_only_the_last_turn_ends_an_episode_in_each_way():
    plans = [plan_episode(number, {}, TOOLS) for number in range(6)]
    assert all([bool(turn.end) for turn in plan.turns] == [False] * (len(plan.turns) - 1) + [True] for plan in plans)
    assert {(plan.turns[-1].end, plan.turns[-1].assistant.finish) for plan in plans} == {
        ("max_turns", "stop"),
        ("length", "length"),
        ("context", "none"),
    }


def test_texts_are_often_values_of_the_item():
    plans = [plan_episode(number, {"letter": "quux", "parts": [{"n": 17}]}, []) for number in range(30)]
    texts = [turn.assistant.text for plan in plans for turn in plan.turns]
    assert "quux" in texts
    assert "17" in texts


def test_a_tool_without_a_usable_schema_is_called_too():
    plan = [plan_episode(number, {}, [Tool(name="odd", parameters_json=text)]) for number in range(5) for text in ("", "[", "[1]")]
    assert any(call.name == "odd" for episode in plan for turn in episode.turns for call in turn.assistant.calls)

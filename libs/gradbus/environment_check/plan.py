"""What the policy of a check does: turns that are a function of the tools, the item and the number of the episode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from gradbus.environment_check.arguments import Arguments
from gradbus.v1.environment_service_pb2 import AssistantTurn, Tool
from gradbus.v1.episode_pb2 import CALL_STATUS_MALFORMED, CALL_STATUS_OK, CALL_STATUS_UNKNOWN_TOOL, ToolCall

_WORDS: Final = ("", "a", "b", "0", "1", "7", "42", "yes", "no", "hello world", "<", "\n", "Ünïcode ✓", "x" * 200)
_KINDS: Final = {"call": 12, "calls": 3, "unfit": 2, "malformed": 1, "unknown": 1, "text": 1}
"""What a turn is, and how often."""
_MOST_TURNS: Final = 8
_TEXT_CHARACTERS: Final = 200
_LAST: Final = ("max_turns", "length", "context")
"""How an episode ends that neither the environment nor the policy ended."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One turn of the policy; with `end` it is the episode's last one."""

    assistant: AssistantTurn
    end: str = ""


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """An episode whose turns do not depend on what the environment says."""

    number: int
    item_json: str
    seed: int
    turns: tuple[PlannedTurn, ...]


def plan_episode(number: int, item: Mapping[str, Any], tools: Sequence[Tool]) -> PlannedEpisode:
    """The episode with this number. Each tool is called in the first episodes; texts are often words of the item."""
    draw = Random(f"check {number}")
    words = [*_WORDS, *_texts(item)]
    policy = _Policy(draw, words, tools)
    count = draw.randint(2, _MOST_TURNS)
    turns = [PlannedTurn(policy.turn(turn, first=number + turn)) for turn in range(count - 1)]
    end = _LAST[number % len(_LAST)]
    finish = {"length": "length", "context": "none"}.get(end, "stop")
    last = AssistantTurn(finish="none") if finish == "none" else AssistantTurn(text=draw.choice(words), finish=finish)
    return PlannedEpisode(number, json.dumps(item, ensure_ascii=False), draw.getrandbits(64), (*turns, PlannedTurn(last, end)))


class _Policy:
    """Draws turns."""

    def __init__(self, draw: Random, words: Sequence[str], tools: Sequence[Tool]) -> None:
        self._draw, self._words = draw, words
        self._arguments = Arguments(draw, words)
        self._tools = [(tool.name, _schema(tool)) for tool in tools]

    def turn(self, number: int, first: int) -> AssistantTurn:
        """One turn; `first` is the tool of its first call, counted from 0 and around."""
        kind = self._draw.choices(list(_KINDS), list(_KINDS.values()))[0] if self._tools else "text"
        if kind == "text":
            return AssistantTurn(text=self._draw.choice(self._words), finish="stop")
        calls = self._draw.randint(2, 4) if kind == "calls" else 1
        made = [self._call(kind, first + n) for n in range(calls)]
        for n, call in enumerate(made):
            call.call_id = f"c{number}.{n}"
        return AssistantTurn(calls=made, finish="stop")

    def _call(self, kind: str, tool: int) -> ToolCall:
        name, schema = self._tools[tool % len(self._tools)]
        if kind == "malformed":
            return ToolCall(arguments_json=f"{name}(", status=CALL_STATUS_MALFORMED)
        if kind == "unknown":
            return ToolCall(name="no_such_tool", arguments_json="{}", status=CALL_STATUS_UNKNOWN_TOOL)
        arguments = self._arguments.unfit(schema) if kind == "unfit" else self._arguments.fitting(schema)
        return ToolCall(name=name, arguments_json=arguments, status=CALL_STATUS_OK)


def _schema(tool: Tool) -> Mapping[str, Any]:
    try:
        schema = json.loads(tool.parameters_json or "{}")
    except ValueError:
        return {}
    return schema if isinstance(schema, dict) else {}


def _texts(value: object) -> Iterator[str]:
    """The values in an item, as texts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str | int | float):
        yield str(value)[:_TEXT_CHARACTERS]

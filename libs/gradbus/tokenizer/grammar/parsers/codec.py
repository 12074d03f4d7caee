"""What a parser needs of the tokenizer and of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradbus.tokenizer.turns import ParsedCall, ParsedTurn


class Codec(Protocol):
    """Between ids and text."""

    def text(self, ids: Sequence[int]) -> str:
        """The ids as text, without special tokens."""

    def written(self, ids: Sequence[int]) -> str:
        """The ids as text, with special tokens."""

    def id_of(self, token: str) -> int | None:
        """The id of an added token."""


class Parser(Protocol):
    """One way to write calls."""

    def __call__(self, drawn: Sequence[int]) -> ParsedTurn:
        """Text and calls of a turn without the stop token at its end. Raises nothing, whatever was drawn."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a run by name, each with the JSON schemas of its parameters in their order."""

    parameters: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> Tools:
        """From {name, description, parameters} objects."""
        return cls({str(tool["name"]): (tool.get("parameters") or {}).get("properties") or {} for tool in tools})

    def call(self, name: str, arguments_json: str) -> ParsedCall:
        """A call that could be read."""
        return ParsedCall(name, arguments_json, "ok" if name in self.parameters else "unknown_tool")


def malformed(text: str) -> ParsedCall:
    """A call that could not be read, with its whole text."""
    return ParsedCall("", text, "malformed")

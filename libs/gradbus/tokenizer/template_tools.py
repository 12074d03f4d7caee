"""The tools of a conversation, as a chat template takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradbus.errors import DatasetError
from gradbus.strict_json import parse_json


@dataclass(frozen=True, slots=True)
class TemplateTools:
    """Tools in the form of OpenAI's, which chat templates take."""

    given: Sequence[dict[str, Any]]
    hidden: Sequence[dict[str, Any]]
    """With a character in place of each control token that they spell."""

    @property
    def are_spelled(self) -> bool:
        """Whether they hold the text of a control token."""
        return self.hidden != self.given


def read_tools(tools_json: str) -> list[dict[str, Any]]:
    """{name, description, parameters} objects. Raises DatasetError for anything else."""
    try:
        tools = parse_json(tools_json.encode())
    except ValueError as error:
        raise DatasetError(f"the tools of a conversation are no JSON ({error}); give a list of {{name, description, parameters}}") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and _is_tool(tool) for tool in tools):
        raise DatasetError("the tools of a conversation are no list of {name, description, parameters}, `parameters` a JSON Schema")
    return tools


def _is_tool(tool: dict[str, Any]) -> bool:
    parameters = tool.get("parameters") or {}
    return isinstance(tool.get("name"), str) and isinstance(parameters, dict) and isinstance(parameters.get("properties") or {}, dict)

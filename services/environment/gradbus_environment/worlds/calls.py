"""Calls of the policy, for environments that do not read them themselves."""

from __future__ import annotations

from collections.abc import Mapping

from gradbus.strict_json import parse_json
from gradbus_environment.contract import Document, Move
from gradbus_environment.sandbox.world import error_text
from gradbus_environment.worlds.json_client import MAX_VALUES


def executed_calls(move: Move) -> list[Mapping[str, str]]:
    """Those that a world executes: of a turn that was cut off none."""
    return [call for call in move.assistant["calls"] if call["status"] == "ok"] if move.assistant["finish"] != "length" else []


def arguments_of(call: Mapping[str, str]) -> Document | str:
    """The arguments, or the error that the policy is told."""
    try:
        arguments = parse_json(call["arguments"].encode("utf-8", "surrogatepass"), MAX_VALUES)
    except ValueError as error:
        return error_text("invalid_arguments", f"the arguments are not JSON: {error}")
    return arguments if isinstance(arguments, dict) else error_text("invalid_arguments", "the arguments are not an object")

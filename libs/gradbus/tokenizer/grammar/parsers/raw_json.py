"""The members of a JSON object as they were written."""

from __future__ import annotations

import json
from typing import Any, Final

from gradbus.strict_json import parse_json

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\n\r"


def members(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and texts of the object's members. Raises ValueError for a text that is no object, or has a member twice."""
    values = parse_json(text.encode())
    if not isinstance(values, dict) or text.startswith("\ufeff"):
        raise ValueError("it is no object")
    written: dict[str, str] = {}
    at = _after_space(text, _after_space(text, 0) + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        if name in written:
            raise ValueError(f"it has {name!r} twice")
        start = _after_space(text, _after_space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        written[name] = text[start:end]
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return values, written


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1] in _SPACE and at < len(text):
        at += 1
    return at


def canonical(value: object) -> str:
    """JSON in one form: no spaces, names sorted."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

"""`name(args)` as the whole turn, with JSON values in the order of the tool's parameters: for models without a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from gradbus.strict_json import parse_json
from gradbus.tokenizer.grammar.parsers.codec import Codec, Tools, malformed
from gradbus.tokenizer.grammar.parsers.raw_json import canonical
from gradbus.tokenizer.turns import ParsedCall, ParsedTurn

_NAME: Final = re.compile(r"[^\W\d][\w.-]{0,127}")


def written_call(name: str, arguments_json: str) -> str:
    """A call as `PlainParser` reads it: an object's values without their names, and of what is no object the text."""
    try:
        values = parse_json(arguments_json.encode())
    except ValueError:
        values = None
    given = ", ".join(json.dumps(value, ensure_ascii=False) for value in values.values()) if isinstance(values, dict) else arguments_json
    return f"{name}({given})" if name else given


class PlainParser:
    """A turn that begins with the name of a tool and a bracket is a call, and so is one that has the form of one."""

    def __init__(self, codec: Codec, tools: Tools) -> None:
        self._codec = codec
        self._tools = tools

    def __call__(self, drawn: Sequence[int]) -> ParsedTurn:
        """Text and call of a turn."""
        text = self._codec.text(drawn)
        call = self._call(text.strip())
        return ParsedTurn(text) if call is None else ParsedTurn("", (call,))

    def _call(self, text: str) -> ParsedCall | None:
        found = _NAME.match(text)
        name, rest = (found.group(), text[found.end() :]) if found else ("", text)
        if not rest.startswith("(") or not name:
            return None
        known = name in self._tools.parameters
        if not rest.endswith(")"):
            return malformed(text) if known else None
        try:
            values = parse_json(f"[{rest[1:-1]}]".encode())
        except ValueError:
            return malformed(text) if known else None
        names = list(self._tools.parameters.get(name, ()))
        if known and len(values) > len(names):
            return malformed(text)
        return self._tools.call(name, canonical(dict(zip(names, values, strict=False)) if known else values))

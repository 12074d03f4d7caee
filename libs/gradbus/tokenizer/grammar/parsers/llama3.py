"""`{"name": ..., "parameters": {...}}` as the whole turn, after `<|python_tag|>` or not: Llama 3.1, 3.2 and 3.3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gradbus.tokenizer.grammar.parsers.codec import Codec, Tools, malformed
from gradbus.tokenizer.grammar.parsers.raw_json import members
from gradbus.tokenizer.turns import ParsedCall, ParsedTurn

_TAG: Final = "<|python_tag|>"
_BEGINS: Final = re.compile(r'\{\s*("type"\s*:\s*"function"\s*,\s*)?"name"\s*:')


class Llama3Parser:
    """A turn with the tag is a call, and so is one that begins as the object of a call does; other JSON is text."""

    def __init__(self, codec: Codec, tools: Tools) -> None:
        self._codec = codec
        self._tools = tools
        self._tag = codec.id_of(_TAG)

    def __call__(self, drawn: Sequence[int]) -> ParsedTurn:
        """Text and call of a turn."""
        text = self._codec.text(drawn)
        body = text.strip()
        tagged = self._tag in drawn if self._tag is not None else body.startswith(_TAG)
        body = body.removeprefix(_TAG).strip()
        if not tagged and not _BEGINS.match(body):
            return ParsedTurn(text)
        try:
            return ParsedTurn("", (self._call(body),))
        except ValueError:
            return ParsedTurn("", (malformed(body),))

    def _call(self, body: str) -> ParsedCall:
        values, written = members(body)
        match values:
            case {"name": str(name), "parameters": dict()}:
                return self._tools.call(name, written["parameters"])
        raise ValueError("it has no name or no parameters")

"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5 and Qwen3."""

from __future__ import annotations

from gradbus.tokenizer.grammar.parsers.codec import Codec, Tools
from gradbus.tokenizer.grammar.parsers.raw_json import members
from gradbus.tokenizer.grammar.parsers.tagged import TaggedParser
from gradbus.tokenizer.turns import ParsedCall


def hermes(codec: Codec, tools: Tools) -> TaggedParser:
    """The parser."""

    def read(body: str) -> ParsedCall:
        values, written = members(body)
        match values:
            case {"name": str(name), "arguments": dict()}:
                return tools.call(name, written["arguments"])
        raise ValueError("it has no name or no arguments")

    return TaggedParser(codec, read)

"""`<tool_call><function=name><parameter=x>value</parameter></function></tool_call>`: Qwen3-Coder and Qwen3.5, Nemotron 3."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradbus.strict_json import parse_json
from gradbus.tokenizer.grammar.parsers.codec import Codec, Tools
from gradbus.tokenizer.grammar.parsers.raw_json import canonical
from gradbus.tokenizer.grammar.parsers.tagged import TaggedParser
from gradbus.tokenizer.turns import ParsedCall

_FUNCTION: Final = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"\s*<parameter=([^<>\n]+)>")
_END: Final = "</parameter>"
_SPELLINGS: Final = {"True": "true", "False": "false", "None": "null"}


def qwen3_coder(codec: Codec, tools: Tools) -> TaggedParser:
    """The parser. A value of a string or of an unknown parameter is text; another is JSON, or text if it cannot be read as that."""

    def read(body: str) -> ParsedCall:
        found = _FUNCTION.fullmatch(body)
        if found is None:
            raise ValueError("it is no function with its end")
        name = found[1].strip()
        schemas = tools.parameters.get(name, {})
        arguments: dict[str, Any] = {}
        for parameter, text in _parameters(found[2]):
            if parameter in arguments:
                raise ValueError(f"it has {parameter!r} twice")
            arguments[parameter] = _value(text, schemas.get(parameter))
        return tools.call(name, canonical(arguments))

    return TaggedParser(codec, read)


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """Names and values. Raises ValueError if anything stands between them."""
    at = 0
    while (found := _PARAMETER.match(text, at)) is not None:
        end = text.find(_END, found.end())
        if end < 0:
            raise ValueError(f"{found[1]!r} has no end")
        yield found[1].strip(), text[found.end() : end].removeprefix("\n").removesuffix("\n")
        at = end + len(_END)
    if text[at:].strip():
        raise ValueError("something stands between its parameters")


def _value(text: str, schema: object) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else "string"
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return parse_json(_SPELLINGS.get(text.strip(), text).encode())
    except ValueError:
        return text

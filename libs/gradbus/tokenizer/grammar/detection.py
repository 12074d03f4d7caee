"""Which parser reads the calls of a model: the one that reads the call which its own chat template writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gradbus.tokenizer.grammar.parsers.codec import Codec, Parser, Tools
from gradbus.tokenizer.grammar.parsers.gpt_oss import GptOssParser
from gradbus.tokenizer.grammar.parsers.hermes import hermes
from gradbus.tokenizer.grammar.parsers.llama3 import Llama3Parser
from gradbus.tokenizer.grammar.parsers.plain import PlainParser
from gradbus.tokenizer.grammar.parsers.qwen3_coder import qwen3_coder
from gradbus.tokenizer.grammar.sentinels import name_of, sentinel

if TYPE_CHECKING:  # a tokenizer's process does without pydantic
    from gradbus.spec.sections import ToolParser

PARSERS: Final[Mapping[ToolParser, Callable[[Codec, Tools], Parser]]] = {
    "hermes": hermes,
    "qwen3_coder": qwen3_coder,
    "llama3": Llama3Parser,
    "gpt_oss": GptOssParser,
    "plain": PlainParser,
}


def parser_of(call: Sequence[int], codec: Codec) -> ToolParser | None:
    """The name of the parser that reads the call which a probe found; None if none does."""
    tools = Tools({name_of(2): {"x": {"type": "string"}}})
    for name, make in PARSERS.items():
        calls = make(codec, tools)(call).calls
        if len(calls) == 1 and calls[0].status == "ok" and json.loads(calls[0].arguments_json) == {"x": sentinel(1)}:
            return name
    return None

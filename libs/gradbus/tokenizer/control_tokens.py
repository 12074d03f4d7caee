"""What a message says never becomes a control token.

A template writes `<|im_end|>` to end a turn, and a tokenizer reads that text as one token, whoever wrote it: a user or a tool could end
their turn and begin another one. Where such a text stands in a message, the row is encoded by a second tokenizer, which knows the
control tokens by other names. The template's own are given these names, so the text in the message is encoded like any other:

    content      hide    template     frame                          encode
    <|im_end|> ─▶ U+F0007 ─▶ ... ─▶ the template's as U+F8007, the content's as it was ─▶ ids

All other rows are encoded by the tokenizer as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

from gradbus.errors import DatasetError, ModelError

_HIDDEN: Final = 0xF0000
_FRAMES: Final = 0xF8000
_PRIVATE: Final = re.compile(f"[{chr(_HIDDEN)}-{chr(_FRAMES + 0x7FFF)}]")
"""Characters of a private use area of Unicode, which stand for control tokens: first those in messages, then those of the template."""
_UNFRAMED: Final = re.compile(f"[{chr(_HIDDEN)}-{chr(_FRAMES + 0x7FFF)}\ud800-\udfff]")
_MOST: Final = 0x8000
_BRACKETED: Final = re.compile("<[|\uff5c].+[|\uff5c]>")
_NOTHING: Final = "(?!)"
"""A pattern that matches nowhere."""
_ASSISTANT: Final = "assistant"
"""The role that may write control tokens: the policy ends its turn and calls tools with them."""
_THINKING: Final = frozenset({"<think>", "</think>"})
"""What an agent may write in the assistant's name: templates look for it, and it begins and ends nobody's turn."""


class ControlTokens:
    """The control tokens of a tokenizer: the special ones, and the added ones that its chat template writes, such as `<tool_call>`."""

    def __init__(self, tokenizer: Any, markers: str = "", *, trusts_assistant: bool = True) -> None:
        """`tokenizer` is transformers', with its chat template; `markers` is a text with more added tokens to count as control tokens.

        `trusts_assistant`: whether the assistant's messages may write control tokens; otherwise they may only think.
        """
        self._tokenizer = tokenizer
        template = tokenizer.chat_template or ""
        written = markers + (template if isinstance(template, str) else json.dumps(template, ensure_ascii=False))
        added = tokenizer.added_tokens_decoder
        control = {
            token.content: (number, token) for number, token in added.items() if token.special or _ends_turns(token.content, written)
        }
        self._ids = {name: number for name, (number, _) in list(control.items())[:_MOST]}
        self._names = sorted(self._ids, key=len, reverse=True)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._pattern = _any_of(self._names)
        self._by_assistant = None if trusts_assistant else _any_of([name for name in self._names if name not in _THINKING])
        self._is_normalized = any(token.normalized for _, token in control.values())

    def are_spelled(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a role, or a message, holds the text of a control token that its author may not write."""
        return any(self._pattern.search(message["role"]) or self._forges(message) for message in messages)

    def hide(self, messages: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
        """The messages with a character in place of each control token that its author may not write.

        Raises DatasetError if they hold such characters already, or a control token that cannot be hidden.
        """
        if any(_PRIVATE.search(json.dumps(message, ensure_ascii=False)) for message in messages):
            raise DatasetError(f"{where} has characters of a private use area beside the text of a control token; remove either")
        for message in messages:
            if self._pattern.search(message["role"]):
                raise DatasetError(f"{where} has a role with the text of a control token; correct the role")
        hidden = [_mapped(message, partial(self._hidden, self._forbidden(message))) for message in messages]
        if any(map(self._forges, hidden)):
            raise DatasetError(
                f"a message of {where} has the text of a control token in characters that the tokenizer rewrites; correct the line"
            )
        return hidden

    def hide_tools(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The tools with a character in place of each control token that they spell. Raises ModelError if they hold such characters."""
        if _PRIVATE.search(json.dumps(tools, ensure_ascii=False)):
            raise ModelError("the tools have characters of the private use area of plane 15; describe them without these")
        hidden: list[dict[str, Any]] = _mapped(tools, partial(self._hidden, self._pattern))
        return hidden

    def reveal(self, text: str) -> str:
        """A rendered text with the control tokens of the messages as they were."""
        return _PRIVATE.sub(lambda found: self._spelled(found.group()), text)

    def frame(self, text: str) -> str:
        """A rendered text with the template's control tokens under their second names, and those of the messages as text."""
        framed = self._pattern.sub(lambda found: self._renamed(found.group(), _FRAMES), text)
        return self.reveal(framed)

    def unframed(self, text: str) -> str:
        """A framed text as it was."""
        return _PRIVATE.sub(lambda found: self._names[ord(found.group()) - _FRAMES], text)

    def encode(self, text: str, where: str) -> tuple[int, ...]:
        """Token ids `[T]` of a framed text. Raises DatasetError if there is no second tokenizer."""
        if not self.can_frame:
            raise DatasetError(
                f"a message of {where} has the text of a control token, which this tokenizer cannot take as text; correct the line"
            )
        return tuple(self.encoding(text).ids)

    @property
    def can_frame(self) -> bool:
        """Whether there is a second tokenizer."""
        return self._framed is not None

    def encoding(self, text: str, *, special: bool = False) -> Any:
        """The second tokenizer's `Encoding` of a framed text, with ids and offsets; `special`: with those that begin or end a text."""
        return self._framed.encode(text, add_special_tokens=special)

    def as_text(self, content: str) -> str:
        """The content as a framed text may hold it: what would stand for a control token, or is half a character, is U+FFFD."""
        return _UNFRAMED.sub("\ufffd", content)

    def as_texts(self, value: Any) -> Any:
        """A JSON value with all its texts `as_text`."""
        return _mapped(value, self.as_text)

    def first_in(self, text: str) -> str | None:
        """The first control token that the text spells."""
        found = self._pattern.search(text)
        return found.group() if found else None

    def id_of(self, name: str) -> int | None:
        """The id of a control token; None if there is none of that name."""
        return self._ids.get(name)

    @cached_property
    def _framed(self) -> Any:
        """The tokenizer with the control tokens under their second names; None if there is none that gives the same ids."""
        if not self._tokenizer.is_fast:
            return None
        from tokenizers import Tokenizer  # noqa: PLC0415 - only a tokenizer's process has it

        content = json.loads(self._tokenizer.backend_tokenizer.to_str())
        second = {name: self._renamed(name, _FRAMES) for name in self._ids}
        for token in content["added_tokens"]:
            token["content"] = second.get(token["content"], token["content"])
        model = content["model"]
        if isinstance(model.get("vocab"), dict):
            model["vocab"] = {second.get(piece, piece): number for piece, number in model["vocab"].items()}
        elif "vocab" in model:
            model["vocab"] = [[second.get(piece, piece), score] for piece, score in model["vocab"]]
        if model.get("unk_token") in second:
            model["unk_token"] = second[model["unk_token"]]
        content["truncation"] = content["padding"] = None  # as transformers sets them at each of its calls
        try:
            framed = Tokenizer.from_str(json.dumps(content))
        except Exception:  # noqa: BLE001 - it has no class of its own: a piece is made of others, whose merges have the first name
            return None
        same = all(framed.token_to_id(second[name]) == number for name, number in self._ids.items())
        return framed if same else None

    def _forbidden(self, message: Mapping[str, Any]) -> re.Pattern[str] | None:
        """What the message's author may not write; None if anything may be written."""
        return self._by_assistant if message["role"] == _ASSISTANT else self._pattern

    def _forges(self, message: Mapping[str, Any]) -> bool:
        """Whether the message holds what its author may not write."""
        forbidden = self._forbidden(message)
        return forbidden is not None and any(self._spells(forbidden, text) for text in _said(message))

    def _hidden(self, forbidden: re.Pattern[str] | None, text: str) -> str:
        return text if forbidden is None else forbidden.sub(lambda found: self._renamed(found.group(), _HIDDEN), text)

    def _renamed(self, name: str, base: int) -> str:
        return chr(base + self._places[name])

    def _spells(self, forbidden: re.Pattern[str], text: str) -> bool:
        """Whether the tokenizer would find such a control token in the text: some it looks for in the normalised one."""
        if forbidden.search(text):
            return True
        normalizer = self._tokenizer.backend_tokenizer.normalizer if self._is_normalized and self._tokenizer.is_fast else None
        return normalizer is not None and forbidden.search(normalizer.normalize_str(text)) is not None

    def _spelled(self, character: str) -> str:
        number = ord(character) - _HIDDEN
        return self._names[number] if number < _MOST else character


def _ends_turns(token: str, template: str) -> bool:
    """Whether an added token that is not special is one for the template: it writes it, or may put it together (`'<|' + role + '|>'`)."""
    return bool(token.strip()) and (token in template or _BRACKETED.fullmatch(token) is not None)


def _any_of(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, names)) or _NOTHING)


def _said(message: Mapping[str, Any]) -> Iterator[str]:
    """All texts of a message but its role."""
    yield from _texts({key: value for key, value in message.items() if key != "role"})


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The value with all its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(inner, change) for key, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, list) else value

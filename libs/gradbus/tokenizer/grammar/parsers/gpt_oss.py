"""Harmony, the channels of gpt-oss: a message to `functions.name` is a call, whose arguments are its content.

    <|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>commentary to=functions.mul <|constrain|>json<|message|>{...}

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradbus.tokenizer.grammar.parsers.codec import Codec, Tools, malformed
from gradbus.tokenizer.grammar.parsers.raw_json import members
from gradbus.tokenizer.turns import ParsedCall, ParsedTurn

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS: Final = ("<|end|>", "<|call|>", "<|return|>")
_MARKS: Final = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)
_SPELLED: Final = re.compile("|".join(map(re.escape, _MARKS)))
_RECIPIENT: Final = re.compile(r"(?:^|\s)to=(\S+)")
_FUNCTIONS: Final = "functions."


@dataclass(frozen=True, slots=True)
class _Piece:
    """A mark, or what stands between two."""

    written: str
    said: str = ""
    is_mark: bool = False


@dataclass
class _Message:
    """A message of the policy; the first one of a turn begins after `<|start|>assistant`."""

    header: list[str] = field(default_factory=list)
    content: str | None = None
    """With special tokens; None until the header ends."""
    said: str = ""
    """The content without special tokens, or what was drawn without any mark."""
    written: str = ""
    """Header and content."""

    @property
    def recipient(self) -> str:
        """Whom it is for; empty: the user."""
        if self.content is None and _CHANNEL not in self.header:
            return ""
        found = [match[1] for part in self.header if (match := _RECIPIENT.search(part))]
        return found[0] if found else ""

    @property
    def channel(self) -> str:
        """The word after `<|channel|>`."""
        words = self.header[self.header.index(_CHANNEL) + 1 :] if _CHANNEL in self.header else []
        return (words[0].split() or [""])[0] if words else ""


class GptOssParser:
    """Finds messages by the ids of their marks, or by text where the tokenizer has no such tokens."""

    def __init__(self, codec: Codec, tools: Tools) -> None:
        self._codec = codec
        self._tools = tools
        ids = {codec.id_of(mark): mark for mark in _MARKS}
        self._marks = {} if None in ids else {number: mark for number, mark in ids.items() if number is not None}

    def __call__(self, drawn: Sequence[int]) -> ParsedTurn:
        """What a turn says on its final and commentary channels, and its calls."""
        said: list[str] = []
        calls: list[ParsedCall] = []
        for message in _messages(self._pieces(drawn)):
            if message.recipient:
                calls.append(self._call(message))
            elif message.channel != "analysis":
                said.append(message.said)
        return ParsedTurn("".join(said), tuple(calls))

    def _pieces(self, drawn: Sequence[int]) -> Iterator[_Piece]:
        if not self._marks:
            text, at = self._codec.written(drawn), 0
            for found in _SPELLED.finditer(text):
                yield from (_Piece(text[at : found.start()], text[at : found.start()]), _Piece(found.group(), is_mark=True))
                at = found.end()
            yield _Piece(text[at:], text[at:])
            return
        begin = 0
        for at, token in enumerate(drawn):
            if token in self._marks:
                yield from (self._between(drawn[begin:at]), _Piece(self._marks[token], is_mark=True))
                begin = at + 1
        yield self._between(drawn[begin:])

    def _between(self, ids: Sequence[int]) -> _Piece:
        return _Piece(self._codec.written(ids), self._codec.text(ids))

    def _call(self, message: _Message) -> ParsedCall:
        try:
            if message.content is not None:
                members(message.content)
                return self._tools.call(message.recipient.removeprefix(_FUNCTIONS), message.content.strip())
        except ValueError:
            pass
        return malformed(message.written)


def _messages(pieces: Iterator[_Piece]) -> Iterator[_Message]:
    message, begun = _Message(), False
    for piece in pieces:
        if piece.is_mark and piece.written in {_START, *_ENDS}:
            if message.written:
                yield message
            message, begun = _Message(), True
            continue
        message.written += piece.written
        if message.content is not None:
            message.content += piece.written
            message.said += piece.said
        elif piece.is_mark and piece.written == _MESSAGE:
            message.content = message.said = ""
        else:
            message.header.append(piece.written)
            message.said = "" if begun or piece.is_mark else piece.said
            begun = True
    if message.written:
        yield message

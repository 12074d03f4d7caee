"""Calls between `<tool_call>` and `</tool_call>`: found by the ids of these tokens where the tokenizer has them, else by text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gradbus.tokenizer.grammar.parsers.codec import Codec, malformed
from gradbus.tokenizer.turns import ParsedCall, ParsedTurn

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of a turn; the tags belong to none."""

    what: Literal["said", "call", "unclosed call"]
    start: int
    end: int


class TaggedParser:
    """Finds the calls of a turn, which `read` reads: it raises ValueError for one that is malformed."""

    def __init__(self, codec: Codec, read: Callable[[str], ParsedCall]) -> None:
        self._codec = codec
        self._read = read
        begin, end = codec.id_of(OPEN), codec.id_of(CLOSE)
        self._tags = None if begin is None or end is None else (begin, end)

    def __call__(self, drawn: Sequence[int]) -> ParsedTurn:
        """Text and calls of a turn."""
        said: list[str] = []
        calls: list[ParsedCall] = []
        for what, text in self._texts(drawn):
            if what == "said":
                said.append(text)
            else:
                calls.append(self._call(text) if what == "call" else malformed(text))
        return ParsedTurn("".join(said), tuple(calls))

    def _texts(self, drawn: Sequence[int]) -> Iterator[tuple[str, str]]:
        if self._tags is None:
            text = self._codec.text(drawn)
            for part in _stretches(lambda tag, at: text.find((OPEN, CLOSE)[tag], at), (len(OPEN), len(CLOSE)), len(text)):
                yield part.what, text[part.start : part.end]
            return
        ids, tags = list(drawn), self._tags

        def find(tag: int, at: int) -> int:
            try:
                return ids.index(tags[tag], at)
            except ValueError:
                return -1

        for part in _stretches(find, (1, 1), len(ids)):
            between = ids[part.start : part.end]
            yield part.what, self._codec.text(between) if part.what == "said" else self._codec.written(between)

    def _call(self, body: str) -> ParsedCall:
        try:
            return self._read(body)
        except ValueError:
            return malformed(body)


def _stretches(find: Callable[[int, int], int], widths: tuple[int, int], length: int) -> Iterator[_Stretch]:
    """The parts of a turn of `length`; `find` says where the opening (0) or closing (1) tag comes next, or -1."""
    at = 0
    while (start := find(0, at)) >= 0:
        yield _Stretch("said", at, start)
        end = find(1, start + widths[0])
        if end < 0:
            yield _Stretch("unclosed call", start + widths[0], length)
            return
        yield _Stretch("call", start + widths[0], end)
        at = end + widths[1]
    yield _Stretch("said", at, length)

"""The ids between two turns: frames of the template, and the messages of tools and users as text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

from gradbus.errors import ModelError
from gradbus.tokenizer.control_tokens import ControlTokens
from gradbus.tokenizer.grammar.cut import cut
from gradbus.tokenizer.grammar.template_frames import Frame, Kind, Slot, TemplateFrames
from gradbus.tokenizer.turns import Author, ChatMessage, Extension

_NAME_CHARACTERS: Final = 256
"""Of a tool's name, or a call's id, that the template writes beside a result: the policy may draw one of any length."""


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    author: Author


class Extender:
    """Makes what follows the policy's turns."""

    def __init__(
        self,
        frames: TemplateFrames,
        control: ControlTokens,
        end_ids: Collection[int],
        result_tokens: int | None,
        thinking_ends: Collection[Kind] = (),
    ) -> None:
        """`end_ids` are the ids after which a turn needs no `frames.close`. `result_tokens`: where a message is cut; None: nowhere.
        `thinking_ends`: the messages with which the thinking before them leaves the context.
        """
        self._frames = frames
        self._control = control
        self._end_ids = end_ids
        self._result_tokens = result_tokens
        self._thinking_ends = thinking_ends
        # The text is encoded as it stands after the end of a turn: some tokenizers encode the beginning of a text in another way.
        self._anchor = frames.end if control.id_of(frames.end) is not None else ""

    def extension(self, last_drawn: int | None, messages: Sequence[ChatMessage]) -> Extension:
        """What follows a turn whose last id is `last_drawn`.

        Raises ModelError for messages that the chat template does not take there.
        """
        ended = last_drawn in self._end_ids
        ends_thinking = any(self._kind(message) in self._thinking_ends for message in messages)
        parts = [] if ended else [_Part(self._control.frame(self._frames.close), "close")]
        parts += self._parts(messages)
        anchor = self._control.frame(self._anchor) if ended else ""
        encoding = self._control.encoding(anchor + "".join(part.text for part in parts))
        first = sum(start < len(anchor) for start, _ in encoding.offsets)
        ids = tuple(encoding.ids[first:])
        starts = [start - len(anchor) for start, _ in encoding.offsets[first:]]
        return Extension(ids, tuple(_spans(parts, starts)), ends_thinking)

    def _parts(self, messages: Sequence[ChatMessage]) -> Iterator[_Part]:
        before: Kind = "assistant"
        last: ChatMessage | None = None
        for message in messages:
            after = self._kind(message)
            yield from self._frame(self._frame_between(before, after), last, message)
            content = self._content(after, self._control.as_text(message.content))
            yield _Part(self._frames.written(after, content), "tool" if message.role == "tool" else "user")
            before, last = after, message
        yield from self._frame(self._frame_between(before, "assistant"), last, None)

    def _content(self, kind: Kind, text: str) -> str:
        if self._result_tokens is None:
            return text
        return cut(text, self._result_tokens, self._control.encoding, partial(self._frames.written, kind))

    def _kind(self, message: ChatMessage) -> Kind:
        if message.role == "tool":
            return self._frames.results_from
        if message.role != "user":
            raise ModelError(f"a message of the role {message.role!r} follows a turn; the environment gives those of tools and users")
        return "user"

    def _frame_between(self, before: Kind, after: Kind) -> Frame:
        try:
            return self._frames.frame(before, after)
        except KeyError:
            cause = self._frames.refusals.get((before, after), "it writes nothing there")
            raise ModelError(f"the chat template takes no {after} after {before} ({cause}); give other messages, or one message") from None

    def _frame(self, frame: Frame, before: ChatMessage | None, after: ChatMessage | None) -> Iterator[_Part]:
        for part in frame:
            if isinstance(part, Slot):
                message = before if part.of == "before" else after
                text = "" if message is None else message.name if part.field == "name" else message.call_id
                yield _Part(self._control.as_text(text[:_NAME_CHARACTERS]), "tool")
            else:
                yield _Part(self._control.frame(part), "frame")


def _spans(parts: Sequence[_Part], starts: Sequence[int]) -> Iterator[tuple[int, int, Author]]:
    """(start, end, author) of tokens that begin at `starts`, in characters of the parts' text."""
    written = [part for part in parts if part.text]
    begins = list(accumulate((len(part.text) for part in written), initial=0))[:-1]
    begun, author = 0, None
    for at, start in enumerate(starts):
        found = written[bisect_right(begins, start) - 1].author
        if author is not None and found != author:
            yield begun, at, author
            begun = at
        author = found
    if author is not None:
        yield begun, len(starts), author

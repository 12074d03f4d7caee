"""Conversations of sentinels: texts that no template writes, so that what stands between them is the template's."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from gradbus.tokenizer.grammar.template_frames import Frame, Slot

Speaker = Literal["user", "assistant", "tool"]
CALL_FORMS: Final = ((True, dict), (True, str), (False, dict), (False, str))
"""How the assistant's calls are given to a template: one for each result or a single one, with arguments as an object or as JSON."""
_LETTERS: Final = "ABCDEFGHJKLMNP"
_NAME: Final = re.compile("qnx([A-P])fzw")
_CALL_ID: Final = re.compile("qcx0([A-P])idzw")
"""Of nine letters and digits, as some templates demand."""
_MARKED: Final = re.compile(f"{_NAME.pattern}|{_CALL_ID.pattern}")


class SentinelLostError(Exception):
    """The template leaves out what a message says."""


def sentinel(number: int) -> str:
    """What message `number` says."""
    return f"xqs{_LETTERS[number]}zvw"


def name_of(number: int) -> str:
    """The tool whose result is message `number`."""
    return f"qnx{_LETTERS[number]}fzw"


def call_id_of(number: int) -> str:
    """The call that message `number` answers."""
    return f"qcx0{_LETTERS[number]}idzw"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Who speaks, and how calls are given; `call_form` None: the assistant makes none."""

    speakers: tuple[Speaker, ...]
    call_form: tuple[bool, type] | None = None

    def messages(self) -> list[dict[str, Any]]:
        """The messages, as a chat template takes them."""
        return [self._message(number, speaker) for number, speaker in enumerate(self.speakers)]

    def gaps(self, text: str) -> list[str]:
        """What stands before, between and after the sentinels. Raises SentinelLostError."""
        found: list[str] = []
        at = 0
        for number in range(len(self.speakers)):
            place = text.find(sentinel(number), at)
            if place < 0:
                raise SentinelLostError(f"it leaves out message {number + 1} of {', '.join(self.speakers)}")
            found.append(text[at:place])
            at = place + len(sentinel(number))
        return [*found, text[at:]]

    def _message(self, number: int, speaker: Speaker) -> dict[str, Any]:
        if speaker == "tool":
            return {"role": "tool", "content": sentinel(number), "name": name_of(number), "tool_call_id": call_id_of(number)}
        results = self._results(number)
        if speaker == "user" or self.call_form is None or not results:
            return {"role": speaker, "content": sentinel(number)}
        all_of_them, arguments_type = self.call_form
        called = results if all_of_them else results[:1]
        arguments = [{"x": sentinel(number) if answer == called[-1] else "1"} for answer in called]
        calls = [
            {
                "type": "function",
                "id": call_id_of(answer),
                "function": {"name": name_of(answer), "arguments": given if arguments_type is dict else json.dumps(given)},
            }
            for answer, given in zip(called, arguments, strict=True)
        ]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def _results(self, number: int) -> list[int]:
        """The results that follow message `number` at once."""
        end = number + 1
        while end < len(self.speakers) and self.speakers[end] == "tool":
            end += 1
        return list(range(number + 1, end))


def as_frame(gap: str, before: int) -> Frame:
    """The text between message `before` and the next one, with slots for names and ids."""
    parts: list[str | Slot] = []
    at = 0
    for found in _MARKED.finditer(gap):
        name, call_id = found.groups()
        number = _LETTERS.index(name or call_id)
        parts += [gap[at : found.start()], Slot("before" if number <= before else "after", "name" if name else "call_id")]
        at = found.end()
    return tuple(part for part in [*parts, gap[at:]] if part)


def turned(frame: Frame, like: Frame) -> Frame:
    """The frame between two results, of a template that names the tool of the first call for each result."""
    written = {part.field for part in like if isinstance(part, Slot)}
    known = {part.field for part in frame if isinstance(part, Slot) and part.of == "after"}
    return tuple(Slot("after", part.field) if isinstance(part, Slot) and part.field in written - known else part for part in frame)


def difference(first: str, second: str) -> tuple[str, str]:
    """Both texts from shortly before they differ."""
    at = len(common_start(first, second))
    start = max(at - 20, 0)
    return first[start : at + 60], second[start : at + 60]


def common_start(first: str, second: str) -> str:
    """The longest text with which both begin."""
    return first[: next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))]

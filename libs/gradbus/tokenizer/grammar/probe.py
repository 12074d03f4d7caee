"""Finds the frames of a chat template: renders short conversations of sentinels, and reads what stands between these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gradbus.errors import GradbusError
from gradbus.tokenizer.control_tokens import ControlTokens
from gradbus.tokenizer.grammar.sentinels import (
    CALL_FORMS,
    Conversation,
    SentinelLostError,
    Speaker,
    as_frame,
    common_start,
    difference,
    sentinel,
    turned,
)
from gradbus.tokenizer.grammar.template_frames import FORMS, Frame, Kind, TemplateFrames

_CONTENTS: Final = (" \n\ta\"b\\c\u00e9\u2028<x> & 'd'{{ y }}\n\n ", '"', "{}", "[1]", "true")
"""What messages say to show the form in which the template writes it."""
_JOINED: Final = ("\n\n",)
"""Between users' messages that a template takes as one only."""


class Rendering(Protocol):
    """A chat template: the text of messages."""

    def __call__(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True, tools: bool = True) -> str:
        """`generation_prompt`: up to where the policy draws. `tools`: with those of the run. Raises GradbusError."""


class NoFrameError(Exception):
    """The template cannot go on after a turn in the way that was asked for."""


@dataclass
class _Found:
    """What a probe has found so far."""

    close: str = ""
    end: str = ""
    between: dict[tuple[Kind, Kind], Frame] = field(default_factory=dict)
    forms: dict[Kind, str] = field(default_factory=dict)
    call: str = ""
    refusals: dict[tuple[Kind, Kind], str] = field(default_factory=dict)


class TemplateProbe:
    """Asks one chat template."""

    def __init__(self, rendering: Rendering, control: ControlTokens, end_tokens: Sequence[str]) -> None:
        """`end_tokens` are the texts of the run's stop tokens."""
        self._rendering = rendering
        self._control = control
        self._end_tokens = [text for text in end_tokens if text]

    def frames(self, *, with_tools: bool) -> TemplateFrames:
        """Everything that the template writes between messages. Raises NoFrameError if a frame is missing that a run needs."""
        found = _Found()
        takes_users = self._try(found, ("user", "assistant", "user"))
        takes_results = self._try(found, ("user", "assistant", "tool")) and self._try(found, ("user", "assistant", "tool", "tool"))
        for rest in (("user", "user"), ("tool", "user"), ("user", "tool")):
            self._try(found, ("user", "assistant", *rest))
        results_from: Kind = "tool"
        if with_tools and not takes_results:
            if self._writes_tools():
                raise NoFrameError(found.refusals.get(("assistant", "tool")) or found.refusals["tool", "tool"])
            results_from = "user"
        if not takes_users and (not with_tools or results_from == "user"):
            raise NoFrameError(found.refusals["assistant", "user"])
        found.between.setdefault(("user", "user"), _JOINED)
        return TemplateFrames(found.close, found.end, found.between, found.forms, results_from, found.call, found.refusals)

    def _try(self, found: _Found, speakers: tuple[Speaker, ...]) -> bool:
        """Adds the frames between the messages after the assistant's turn; False if the template refuses them."""
        if len(speakers) > 3 and ("assistant", speakers[2]) not in found.between:
            found.refusals[speakers[-2], speakers[-1]] = found.refusals["assistant", speakers[2]]
            return False
        lost, refused = "", ""
        for call_form in (*CALL_FORMS, None) if speakers[2] == "tool" else (None,):
            try:
                self._add(found, Conversation(speakers, call_form))
            except SentinelLostError as error:
                lost = str(error)
            except GradbusError as error:
                refused = str(error).rpartition("; ")[0]  # without its advice, which is for a user's messages
            except NoFrameError as error:  # another way to give calls may only hide the difference
                refused = str(error)
                break
            else:
                return True
        found.refusals[speakers[-2], speakers[-1]] = refused or lost
        return False

    def _add(self, found: _Found, conversation: Conversation) -> None:
        speakers = conversation.speakers
        gaps = self._gaps(conversation)
        close, end, after = self._ended(gaps[2], conversation)
        frames: dict[tuple[Kind, Kind], Frame] = {("assistant", speakers[2]): as_frame(after, 1)}
        for number in range(2, len(speakers)):
            following: Kind = speakers[number + 1] if number + 1 < len(speakers) else "assistant"
            frames[speakers[number], following] = as_frame(gaps[number + 1], number)
        if len(speakers) == 3:
            self._check_extends(conversation)
            if speakers[2] == "tool":
                self._check_no_assistant(conversation)
        elif speakers[3] == "user":
            self._check_beginning(self._gaps(Conversation(speakers[:3], conversation.call_form)), gaps)
        if ("tool", "tool") in frames:
            frames["tool", "tool"] = turned(frames["tool", "tool"], frames["assistant", "tool"])
        form = self._form(conversation)
        for pair, frame in frames.items():
            found.between.setdefault(pair, frame)
        found.forms.setdefault(speakers[-1], form)
        if not found.end:
            found.close, found.end = (close if conversation.call_form is None else end), end
        if conversation.call_form is not None and not found.call:
            found.call = self._call(conversation, close.removesuffix(end))

    def _gaps(self, conversation: Conversation, *, generation_prompt: bool = True) -> list[str]:
        return conversation.gaps(self._rendering(conversation.messages(), generation_prompt=generation_prompt))

    def _ended(self, gap: str, conversation: Conversation) -> tuple[str, str, str]:
        """The end of the assistant's turn, its last token, and what follows it."""
        places = [(self._control.id_of(text) is None, gap.find(text), text) for text in self._end_tokens if text in gap]
        if places:
            _, at, end = min(places)
        else:
            at, end = 0, self._rewritten_end(gap, conversation)
        return gap[: at + len(end)], end, gap[at + len(end) :]

    def _rewritten_end(self, gap: str, conversation: Conversation) -> str:
        """The token in place of a stop token once a turn is history, as in gpt-oss. Raises NoFrameError if there is none."""
        end = self._control.first_in(gap)
        if end is not None and gap.startswith(end) and conversation.call_form is None:
            last = self._gaps(Conversation(conversation.speakers[:2]), generation_prompt=False)[-1]
            if last.startswith(tuple(self._end_tokens)):
                return end
        raise NoFrameError(f"it ends the assistant's turn by {gap[:40]!r}, which has no stop token; set rollout.stop_token_ids")

    def _check_extends(self, conversation: Conversation) -> None:
        """Raises NoFrameError unless a conversation that goes on begins with the text that it had before."""
        speakers = conversation.speakers
        longer = Conversation((*speakers, "assistant", speakers[2]), conversation.call_form)
        before, after = self._gaps(conversation), self._gaps(longer)
        self._check_beginning(before, after)
        first, second = (self._ended(gaps[at], longer)[2] for gaps, at in ((before, 2), (after, 4)))
        if as_frame(first, 1) != as_frame(second, 3):
            raise NoFrameError(_changed(first, second))
        self._check_alike(before[3], after[3], conversation)

    def _check_beginning(self, before: Sequence[str], after: Sequence[str]) -> None:
        """Raises NoFrameError unless the same stands before the assistant's turn, and after it."""
        for at in (0, 2):
            if before[at] != after[at]:
                raise NoFrameError(_changed(before[at], after[at]))
        self._check_alike(before[1], after[1], Conversation(("user",)))

    def _check_alike(self, first: str, second: str, conversation: Conversation) -> None:
        """Raises NoFrameError unless both end the conversation's last message in the same way.

        What the assistant's turn begins with may differ: templates remove thinking, or begin it in the generation prompt alone.
        """
        closed = self._gaps(conversation, generation_prompt=False)[-1]
        if not (first.startswith(second) or second.startswith(first)) and not (closed and common_start(first, second).startswith(closed)):
            raise NoFrameError(_changed(first, second))

    def _check_no_assistant(self, conversation: Conversation) -> None:
        """Raises NoFrameError if a tool's result is written as the assistant's own words."""
        messages = conversation.messages()
        said = [*messages[:-1], {"role": "assistant", "content": messages[-1]["content"]}]
        with suppress(GradbusError):
            if self._rendering(said) == self._rendering(messages):
                raise NoFrameError("it writes a tool's result as the assistant's words")

    def _writes_tools(self) -> bool:
        messages = Conversation(("user",)).messages()
        with suppress(GradbusError):
            return self._rendering(messages) != self._rendering(messages, tools=False)
        return True

    def _call(self, conversation: Conversation, ending: str) -> str:
        """The assistant's turn up to its end token, as the policy would draw it, as a framed text."""
        messages = conversation.messages()
        # Framed, two control tokens have no beginning in common.
        prompt, text = (self._control.frame(self._rendering(given)) for given in (messages[:1], messages))
        said = text[len(common_start(prompt, text)) : text.index(sentinel(1))]
        return said + sentinel(1) + self._control.frame(ending)

    def _form(self, conversation: Conversation) -> str:
        """The form of the last message's content."""
        messages = conversation.messages()
        head, _, tail = self._rendering(messages).partition(sentinel(len(messages) - 1))
        possible = dict(FORMS)
        for content in _CONTENTS:
            written = self._rendering([*messages[:-1], messages[-1] | {"content": content}])
            if not (written.startswith(head) and written.endswith(tail) and len(written) >= len(head) + len(tail)):
                a, b = difference(head + sentinel(len(messages) - 1) + tail, written)
                raise NoFrameError(f"it looks into what messages say: {a!r}, then {b!r}")
            middle = written[len(head) : len(written) - len(tail)]
            possible = {name: form for name, form in possible.items() if form(content) == middle}
            if not possible:
                raise NoFrameError(f"it writes {content!r} as {middle!r}")
        return next(iter(possible))


def _changed(first: str, second: str) -> str:
    a, b = difference(first, second)
    return f"it writes a part in another way when a conversation goes on: {a!r}, then {b!r}"

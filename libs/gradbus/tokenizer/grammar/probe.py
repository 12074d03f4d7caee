"""Finds the frames of a chat template: renders short conversations of sentinels, and reads what stands between these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gradbus.errors import GradbusError
from gradbus.tokenizer.grammar.sentinels import (
    CALL_FORMS,
    Conversation,
    SentinelLostError,
    Speaker,
    as_frame,
    difference,
    sentinel,
    turned,
)
from gradbus.tokenizer.grammar.template_frames import FORMS, Frame, Kind, TemplateFrames

Rendering = Callable[[list[dict[str, Any]], bool], str]
"""The text of messages; True: with the generation prompt."""

_CONTENTS: Final = (" \n\ta\"b\\c\u00e9\u2028<x> & 'd'{{ y }}\n\n ", '"', "{}", "[1]", "true")
"""What messages say to show the form in which the template writes it."""


class NoFrameError(Exception):
    """The template cannot go on after a turn in the way that was asked for."""


@dataclass
class _Found:
    """What a probe has found so far."""

    close: str = ""
    end: str = ""
    between: dict[tuple[Kind, Kind], Frame] = field(default_factory=dict)
    forms: dict[Kind, str] = field(default_factory=dict)
    refusals: dict[tuple[Kind, Kind], str] = field(default_factory=dict)


class TemplateProbe:
    """Asks one chat template."""

    def __init__(self, rendering: Rendering, end_tokens: Sequence[tuple[str, bool]], first_control: Callable[[str], str | None]) -> None:
        """`end_tokens` are the texts of the run's stop tokens, and whether each is a control token.

        `first_control` gives the first control token in a text.
        """
        self._rendering = rendering
        self._end_tokens = [(text, control) for text, control in end_tokens if text]
        self._first_control = first_control

    def frames(self, *, with_tools: bool) -> TemplateFrames:
        """Everything that the template writes between messages. Raises NoFrameError if a frame is missing that a run needs."""
        found = _Found()
        self._try(found, ("user", "assistant", "user"), needed=not with_tools)
        self._try(found, ("user", "assistant", "tool"), needed=with_tools)
        self._try(found, ("user", "assistant", "tool", "tool"), needed=with_tools)
        for rest in (("user", "user"), ("tool", "user"), ("user", "tool")):
            self._try(found, ("user", "assistant", *rest), needed=False)
        tools = found.between.get(("tool", "tool"))
        if tools is not None:
            found.between["tool", "tool"] = turned(tools, found.between["assistant", "tool"])
        return TemplateFrames(found.close, found.end, found.between, found.forms, refusals=found.refusals)

    def _try(self, found: _Found, speakers: tuple[Speaker, ...], *, needed: bool) -> None:
        """Adds the frames between the messages after the assistant's turn."""
        refusal = ""
        for call_form in (*CALL_FORMS, None) if speakers[2] == "tool" else (None,):
            conversation = Conversation(speakers, call_form)
            try:
                self._add(found, conversation)
            except (GradbusError, SentinelLostError, NoFrameError) as error:
                refusal = str(error)
            else:
                return
        if needed:
            raise NoFrameError(refusal)
        found.refusals[speakers[-2], speakers[-1]] = refusal

    def _add(self, found: _Found, conversation: Conversation) -> None:
        speakers = conversation.speakers
        gaps = self._gaps(conversation)
        close, end, after = self._ended(gaps[2], conversation)
        frames: dict[tuple[Kind, Kind], Frame] = {("assistant", speakers[2]): as_frame(after, 1)}
        for number in range(2, len(speakers)):
            following: Kind = speakers[number + 1] if number + 1 < len(speakers) else "assistant"
            frames[speakers[number], following] = as_frame(gaps[number + 1], number)
        form = self._form(conversation)
        for pair, frame in frames.items():
            found.between.setdefault(pair, frame)
        found.forms.setdefault(speakers[-1], form)
        if conversation.call_form is None and not found.end:
            found.close, found.end = close, end

    def _gaps(self, conversation: Conversation, *, generation_prompt: bool = True) -> list[str]:
        return conversation.gaps(self._rendering(conversation.messages(), generation_prompt))

    def _ended(self, gap: str, conversation: Conversation) -> tuple[str, str, str]:
        """The end of the assistant's turn, its last token, and what follows it."""
        places = [(not control, gap.find(text), text) for text, control in self._end_tokens if text in gap]
        if places:
            _, at, end = min(places)
        else:  # a template may write another end once the turn is history
            last = self._gaps(Conversation(conversation.speakers[:2]), generation_prompt=False)[-1]
            rewritten = self._first_control(gap)
            if rewritten is None or not any(text in last for text, _ in self._end_tokens):
                raise NoFrameError(
                    f"the chat template ends the assistant's turn by {gap[:40]!r}, which has no stop token; set rollout.stop_token_ids"
                )
            at, end = gap.find(rewritten), rewritten
        return gap[: at + len(end)], end, gap[at + len(end) :]

    def _form(self, conversation: Conversation) -> str:
        """The form of the last message's content."""
        messages = conversation.messages()
        text = self._rendering(messages, True)
        mark = sentinel(len(messages) - 1)
        head, _, tail = text.partition(mark)
        possible = dict(FORMS)
        for content in _CONTENTS:
            written = self._rendering([*messages[:-1], messages[-1] | {"content": content}], True)
            if not (written.startswith(head) and written.endswith(tail) and len(written) >= len(head) + len(tail)):
                raise NoFrameError(f"the chat template looks into messages: {difference(text, written)}; give it one that does not")
            middle = written[len(head) : len(written) - len(tail)]
            possible = {name: form for name, form in possible.items() if form(content) == middle}
            if not possible:
                raise NoFrameError(f"the chat template writes {content!r} as {middle!r}; give it one that writes messages as they are")
        return next(iter(possible))

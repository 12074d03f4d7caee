"""Finds out where a chat template removes the thinking of turns that are over, and what it writes in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gradbus.errors import DatasetError, GradbusError
from gradbus.tokenizer.chat_template import ChatTemplate
from gradbus.tokenizer.control_tokens import ControlTokens
from gradbus.tokenizer.grammar.probe import NoFrameError
from gradbus.tokenizer.grammar.sentinels import CALL_FORMS, Conversation, SentinelLostError, Speaker, common_start, sentinel
from gradbus.tokenizer.grammar.template_frames import Kind

if TYPE_CHECKING:  # a tokenizer's process does without pydantic
    from gradbus.spec.sections import Thinking

THINK: Final = "<think>"
THOUGHT: Final = "</think>"
_CHANNEL: Final = "<|channel|>"
"""By which Harmony (gpt-oss) marks thinking."""
_SAID: Final = sentinel(12)
"""What the policy thinks in a probe."""
_BETWEEN: Final = ("\n\n", " \n ", "")
"""What stands between thinking and answer."""
TRIMS: Final[Mapping[str, Callable[[str], str]]] = {
    "nothing": str,
    "line breaks": lambda text: text.lstrip("\n"),
    "spaces": str.lstrip,
}
"""What a template removes from the beginning of an answer."""
_KEEP: Final = 'set environment.thinking = "keep"'
_UNSET: Final = (
    'set environment.thinking = "template" to remove it there too, in a new sequence of tokens each time, or "keep" to leave it in '
    "the context, where it is in no other program"
)


@dataclass(frozen=True, slots=True)
class ThinkingRule:
    """When the thinking of turns leaves the context, and what is left of each."""

    at: frozenset[Kind] = frozenset()
    """Before messages of these kinds; empty: it stays."""
    opening: str = ""
    """The end of what stands before a turn, which goes too: templates begin the thinking there."""
    instead: str = ""
    """What is written in place of the thinking."""
    trim: str = "line breaks"
    """Of TRIMS: what goes from the beginning of the answer."""


def thinking_rule(probe: ThinkingProbe, policy: Thinking | None, kinds: Collection[Kind], template: ChatTemplate) -> ThinkingRule:
    """As `ThinkingProbe.rule`. Raises ModelFileError, of the template's file."""
    try:
        return probe.rule(policy, kinds)
    except (NoFrameError, DatasetError) as error:
        raise template.error(f"environment.thinking and the chat template do not fit: {error}") from error


def thoughts(between: str = _BETWEEN[0]) -> str:
    """What the policy thinks in a probe, with what stands after it."""
    return f"{THINK}\n{_SAID}\n{THOUGHT}{between}"


def thoughtful(conversation: Conversation, before: str) -> list[dict[str, Any]]:
    """Its messages with `before` at the beginning of what the assistant says."""
    return [
        message | {"content": before + message["content"]} if message["role"] == "assistant" else message
        for message in conversation.messages()
    ]


class ThinkingProbe:
    """Asks one chat template."""

    def __init__(self, rendering: Callable[[list[dict[str, Any]]], str], control: ControlTokens) -> None:
        """`rendering` gives the text of messages up to where the policy draws."""
        self._rendering = rendering
        self._control = control

    def rule(self, policy: Thinking | None, kinds: Collection[Kind]) -> ThinkingRule:
        """The rule of a policy, where messages of these kinds follow turns.

        Raises NoFrameError if the template removes thinking and the policy is not said, or if it cannot be followed.
        """
        if policy == "keep":
            return ThinkingRule()
        if self._control.id_of(_CHANNEL) is not None:
            raise NoFrameError('its model thinks in channels, and their thinking is kept alone; set environment.thinking = "keep"')
        removed = frozenset(kind for kind in kinds if self._removes(kind))
        if policy is None and removed:
            raise NoFrameError(f"it removes the thinking of turns before messages of {' and '.join(sorted(removed))}; {_UNSET}")
        if not removed:
            return ThinkingRule(frozenset({"user"}), self.begun) if policy == "strip" else ThinkingRule()
        self._check_all_goes()
        return self._derived(removed | frozenset[Kind](("user",) if policy == "strip" else ()))

    @property
    def prompt_end(self) -> str:
        """What the template writes between a user's message and the policy's turn."""
        asked = Conversation(("user",))
        return asked.gaps(self._rendering(asked.messages()))[-1]

    def _removes(self, kind: Kind) -> bool:
        """Whether it leaves out what is between the tags, and would write it without them."""
        speakers: tuple[Speaker, ...] = ("user", "assistant", kind)
        forms: Sequence[tuple[bool, type] | None] = CALL_FORMS if kind == "tool" else (None,)
        for form in forms:
            conversation = Conversation(speakers, form)
            with suppress(GradbusError):
                if _SAID in self._rendering(thoughtful(conversation, f"{_SAID} ")):
                    return _SAID not in self._rendering(thoughtful(conversation, thoughts()))
        return False

    def _check_all_goes(self) -> None:
        """Raises NoFrameError if the thinking of one turn stays where that of a later one goes."""
        for form in (*CALL_FORMS, None):
            speakers: tuple[Speaker, ...] = ("user", "assistant", "user" if form is None else "tool", "assistant", "user")
            with suppress(GradbusError):
                if _SAID in self._rendering(thoughtful(Conversation(speakers, form), thoughts())):
                    raise NoFrameError(f"it removes the thinking of some turns, and that of others stays; {_KEEP}")

    def _derived(self, removed: frozenset[Kind]) -> ThinkingRule:
        """The rule of a template that removes it before users' messages."""
        prompt, history = self.prompt_end, Conversation(("user", "assistant", "user"))
        try:
            found = {between: history.gaps(self._rendering(thoughtful(history, thoughts(between))))[1] for between in _BETWEEN}
        except (SentinelLostError, GradbusError) as error:
            raise NoFrameError(f"it removes thinking, and takes no user's message after a turn ({error}); {_KEEP}") from error
        start = common_start(prompt, found[""])
        after = {between: text[len(start) :] for between, text in found.items()}
        for name, trimmed in TRIMS.items():
            if all(text == after[""] + trimmed(between) for between, text in after.items()):
                return ThinkingRule(removed, prompt[len(start) :], after[""], name)
        raise NoFrameError(f"it writes {found[_BETWEEN[0]]!r} in place of thinking; {_KEEP}")

    @property
    def begun(self) -> str:
        """The end of what stands before a turn, if the policy's thinking begins there."""
        end = self.prompt_end
        at = end.rfind(THINK)
        return end[at:] if at > end.rfind(THOUGHT) else ""

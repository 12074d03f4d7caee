"""From what an environment sent to a checked answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from gradbus.algorithms import MAX_REWARD
from gradbus.errors import GradbusError
from gradbus.sandbox.bounds import MAX_COMPONENT, MAX_COMPONENTS, MAX_NAME
from gradbus.strict_json import is_unicode
from gradbus.v1.episode_pb2 import Message
from gradbus_environment.contract import Answer, Move
from gradbus_environment.sandbox.world import MAX_MESSAGES, MAX_TEXTS, error_text

_OPENING_ROLES: Final = ("system", "user", "assistant")
_UNANSWERED: Final[Mapping[str, tuple[str, str]]] = {
    "malformed": ("malformed_call", "the text between the markers of a call is no call"),
    "unknown_tool": ("unknown_tool", "there is no tool {name}"),
}


class AnswerError(GradbusError):
    """The environment broke its contract."""


class RewardError(AnswerError):
    """A reward or component is no number, or out of range."""


def opening_messages(given: object) -> list[Message]:
    """The conversation that an opening begins with. Raises AnswerError."""
    return [Message(role=role, content=content) for role, content, _ in _read(given, _OPENING_ROLES)]


def step_messages(given: object, move: Move) -> list[Message]:
    """Results of the calls in their order, then what the world says. Raises AnswerError.

    A malformed call and one of an unknown tool may lack a result, and get the service's; so may every call of the last turn.
    """
    results: dict[str, str] = {}
    said: list[Message] = []
    known = {call["call_id"]: call for call in move.assistant["calls"]}
    for role, content, call_id in _read(given, ("tool", "user")):
        if role == "user":
            said.append(Message(role=role, content=content))
        elif call_id not in known:
            raise AnswerError(f"a tool message answers the call {call_id[:80]!r}, which the turn does not have; use its call ids")
        elif call_id in results:
            raise AnswerError(f"two tool messages answer the call {call_id!r}; send one")
        else:
            results[call_id] = content
    return [*_results(move, results), *said]


def _results(move: Move, results: Mapping[str, str]) -> Iterator[Message]:
    for call in move.assistant["calls"]:
        call_id, name = call["call_id"], call["name"]
        if call_id in results:
            yield Message(role="tool", content=results[call_id], call_id=call_id, name=name)
        elif call["status"] in _UNANSWERED:
            kind, text = _UNANSWERED[call["status"]]
            yield Message(role="tool", content=error_text(kind, text.format(name=name[:80])), call_id=call_id, name=name)
        elif not move.is_last:
            raise AnswerError(f"no tool message answers the call {call_id!r} of {name[:80]!r}; send one for each call of the turn")
    for call_id, name in move.surplus:
        yield Message(role="tool", content=error_text("too_many_calls", "a turn may not have so many calls"), call_id=call_id, name=name)


def checked_reward(reward: object, components: object) -> tuple[float | None, dict[str, float]]:
    """A reward, or None where there is none, and its components. Raises RewardError."""
    if not isinstance(components, Mapping) or len(components) > MAX_COMPONENTS:
        raise RewardError(f"the components are no object of at most {MAX_COMPONENTS} numbers; leave out the others")
    found = {}
    for name, value in components.items():
        if not isinstance(name, str) or len(name) > MAX_NAME or not is_unicode(name):
            raise RewardError(f"the component {str(name)[:80]!r} has a name that is no text of at most {MAX_NAME} characters; shorten it")
        found[name] = _number(f"the component {name[:80]!r}", value, MAX_COMPONENT)
    if reward is None:
        if found:
            raise RewardError("there are components without a reward; send both")
        return None, {}
    return _number("the reward", reward, MAX_REWARD), found


def _number(what: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:  # NaN compares to nothing
        shown = repr(value)[:80] if isinstance(value, int | float | str | None) else type(value).__name__
        raise RewardError(f"{what} is {shown}; give a number within ±{most:g}")
    return float(value)


def _read(given: object, roles: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(role, content, call id) of each message."""
    if given is None:
        return
    if not isinstance(given, list) or len(given) > MAX_MESSAGES:
        raise AnswerError(f"messages is no list of at most {MAX_MESSAGES} messages")
    left = MAX_TEXTS
    for one in given:
        match one:
            case {"role": str(role), "content": str(content)} if role in roles and isinstance(call_id := one.get("call_id"), str | None):
                pass
            case _:
                raise AnswerError(f"a message is no {{role, content, call_id?}} of texts with a role of {', '.join(roles)}")
        if not is_unicode(content):
            raise AnswerError("the content of a message has half of a surrogate pair, which is no character; send valid Unicode")
        left -= len(content)
        if left < 0:
            raise AnswerError(f"the messages of an answer have more than {MAX_TEXTS} characters; shorten them")
        yield role, content, call_id or ""


def ok_answer(messages: Sequence[Message], reward: float | None, components: Mapping[str, float], done: object) -> Answer:
    """An answer of the world that goes on. Raises AnswerError."""
    if not isinstance(done, bool):
        raise AnswerError("done is neither true nor false")
    return Answer(messages=messages, reward=reward, components=components, done=done)

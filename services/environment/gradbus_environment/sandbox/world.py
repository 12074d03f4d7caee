"""One session of a user's `Environment` in the confined process. Standard library only."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gradbus.sandbox.child import described
from gradbus.sandbox.results import checked_result
from gradbus_environment.sandbox import trl
from gradbus_environment.sandbox.tools import ArgumentsError, Tool

MAX_TEXT = 65_536
"""Characters of one message; of a longer one the beginning and the end are kept."""
MAX_TEXTS = 1 << 20
"""Characters of all messages of an answer."""
MAX_MESSAGES = 256
_MAX_DEPTH = 64
_SEED_BYTES = 8
_STEP_KEYS = frozenset({"message", "reward", "done", "components"})
_ROLES = frozenset({"system", "user", "assistant"})

Document = dict[str, Any]


class FaultError(Exception):
    """A function that the policy does not call failed, or returned what it may not."""


class InvalidRewardError(Exception):
    """A reward or component is not a finite number."""


class World:
    """The user's object of one session, with its calls as the service's messages. Raises FaultError, InvalidRewardError, MemoryError."""

    def __init__(self, environment: Any, tools: Mapping[str, Tool], seed: int) -> None:
        self._environment = environment
        self._tools = tools
        self._seed = seed
        self._is_trl = trl.takes_columns(type(environment))
        self._said = ""
        """The text of the newest turn."""

    def reset(self, item: Any) -> Document:
        """Begins the episode."""
        self._reseed("reset")
        if self._is_trl:
            said = trl.conversation(item, _called("reset", lambda: self._environment.reset(**item)))
        else:
            said = _called("reset", lambda: self._environment.reset(item, self._seed))
        if said is None:
            return {"status": "ok", "messages": []}
        given = [{"role": "user", "content": said}] if isinstance(said, str) else said
        if not isinstance(given, list) or len(given) > MAX_MESSAGES or not all(map(_is_message, given)):
            raise FaultError("reset() must return None, a text or a list of {role, content}, with role system, user or assistant")
        most = MAX_TEXTS // max(1, len(given))
        return {"status": "ok", "messages": [{"role": one["role"], "content": cut(one["content"], most)} for one in given]}

    def step(self, turn: int, assistant: Mapping[str, Any], is_last: bool) -> Document:
        """One turn of the policy: its calls, or else the user's `step`; then, if the episode ends, the user's `reward`."""
        self._reseed(str(turn))
        calls, was_drawn = assistant["calls"], assistant["finish"] != "none"
        text = self._said = assistant["text"] if was_drawn else self._said
        answer: Document = {"status": "ok", "messages": [], "done": False, "rewards": []}
        if not was_drawn:
            pass  # the policy had no room for this turn: the last one is judged
        elif calls:
            # Of a turn that was cut off nothing is executed.
            answer["messages"] = [] if assistant["finish"] == "length" else self._results(calls)
        elif not self._is_trl and hasattr(type(self._environment), "step"):
            self._take_step(text, answer)
        if is_last or answer["done"] or not (calls or answer["messages"]):
            answer["rewards"].extend(self._judged(text))
        return answer

    def _judged(self, text: str) -> list[list[Any]]:
        """The reward of the whole episode, if the class gives one."""
        if self._is_trl:
            said = _called("get_reward", lambda: trl.judgement(self._environment))
            return [] if said is None else [_reward(said, "the reward")]
        if not hasattr(type(self._environment), "reward"):
            return []
        return [_reward(_called("reward", lambda: self._environment.reward(text)), "reward()")]

    def _take_step(self, text: str, answer: Document) -> None:
        said = _called("step", lambda: self._environment.step(text))
        if said is None:
            return
        if not isinstance(said, dict) or not said.keys() <= _STEP_KEYS:
            raise FaultError("step() must return None or a dict of message, reward, done and components")
        message, done, components = said.get("message"), said.get("done", False), said.get("components", {})
        if not isinstance(message, str | None) or not isinstance(done, bool) or not isinstance(components, dict):
            raise FaultError("step() must return message as a text, done as a bool and components as a dict")
        if message is not None:
            answer["messages"] = [{"role": "user", "content": cut(message, MAX_TEXT)}]
        answer["done"] = done
        if said.get("reward") is not None:
            answer["rewards"].append(_reward({**components, "reward": said["reward"]}, "step()"))
        elif components:
            raise FaultError("step() returned components without a reward; return both")

    def _results(self, calls: list[Any]) -> list[Document]:
        most = min(MAX_TEXT, MAX_TEXTS // len(calls))
        return [
            {"role": "tool", "call_id": call["call_id"], "content": cut(self._result(call), most)}
            for call in calls
            if call["status"] == "ok"
        ]

    def _result(self, call: Mapping[str, str]) -> str:
        """What a tool said, or a typed error: whatever goes wrong in it, the policy may have caused."""
        tool = self._tools.get(call["name"])
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return error_text("unknown_tool", f"there is no tool {call['name'][:80]}; known: {known}")
        try:
            arguments = tool.arguments(call["arguments"])
        except ArgumentsError as error:
            return error_text("invalid_arguments", str(error))
        try:
            said = getattr(self._environment, tool.name)(**arguments)
            return said if isinstance(said, str) else _canonical(said)
        except FaultError:  # no sandbox: not the policy's doing
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the tool raises, too much memory included, is told to the policy
            return error_text("tool_failed", described(error, "<environment", "environment"))

    def _reseed(self, call: str) -> None:
        """The same global random numbers at each call, whatever other sessions of this process drew."""
        digest = hashlib.sha256(f"{self._seed}.{call}".encode()).digest()
        random.seed(digest)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(int.from_bytes(digest[:4], "big"))


def error_text(kind: str, message: str) -> str:
    """What a call that failed gets for a result."""
    return _canonical({"error": kind, "message": message})


def _called(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it raises is told to the user
        raise FaultError(f"{name}() raised {described(error, '<environment', 'environment')}") from None


def _reward(said: object, function: str) -> list[Any]:
    result = checked_result(said, function)
    if isinstance(result, str):
        raise InvalidRewardError(result)
    return list(result)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"role", "content"} and value["role"] in _ROLES and isinstance(value["content"], str)


def _canonical(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and end with the number of characters between them."""
    if len(text) <= most:
        return str(text)
    marker = f"\n[{len(text) - most} characters cut]\n"
    kept = max(0, most - len(marker))
    return text[: kept - kept // 2] + marker + text[len(text) - kept // 2 :]

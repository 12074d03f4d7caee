"""Reward functions written for other frameworks, called as these call them, with one sample at a time.

Standard library only: it runs in the confined process.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from gradbus.sandbox.bounds import MAX_COMPONENT, MAX_COMPONENTS, MAX_NAME
from gradbus.sandbox.results import Result, checked_result


@dataclass(frozen=True)
class Asked:
    """What a function is asked about."""

    prompt: str
    text: str
    finish_reason: str
    item: Any
    """The dataset row."""
    label: str
    """Its column with the reference answer."""
    said: dict[str, float] = field(default_factory=dict)
    """Components that the function logs."""

    @property
    def truth(self) -> Any:
        """The reference answer: where verl's datasets have it, or in the column."""
        model = self.item.get("reward_model")
        return model["ground_truth"] if isinstance(model, Mapping) and "ground_truth" in model else self.item.get(self.label)

    @property
    def messages(self) -> bool:
        """Whether the row's prompt is a conversation; then so is the completion of TRL, Atropos and verifiers."""
        return isinstance(self.item.get("prompt"), list)

    @property
    def completion(self) -> Any:
        """As TRL, Atropos and verifiers have it."""
        return [{"role": "assistant", "content": self.text}] if self.messages else self.text

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The other columns of the row, each as a list of one."""
        return {name: [value] for name, value in self.item.items() if name not in {"prompt", "prompts", "completion", "completions"}}


class NotApplicableError(ValueError):
    """The function gives this sample no reward."""


def graded(function: Callable[..., Any], interface: str, row: Sequence[str], label: str) -> Result:
    """The reward of a row: output text, finish reason, item as JSON, and the prompt for other interfaces than ours.

    Raises whatever the function raises.
    """
    text, finish_reason, item_json, *prompt = row
    asked = Asked("".join(prompt), text, finish_reason, json.loads(item_json), label)
    if interface == "gradbus":
        return checked_result(function({"output_text": text, "finish_reason": finish_reason}, asked.item), "grade()")
    result = checked_result(_CALLS[interface](function, asked), "the function")
    return result if isinstance(result, str) else (result[0], {**result[1], **asked.said})


def _verl(function: Callable[..., Any], asked: Asked) -> Any:
    item = asked.item
    given = function(
        data_source=item.get("data_source"),
        solution_str=asked.text,
        ground_truth=asked.truth,
        extra_info=item.get("extra_info"),
    )
    return _by_score(_finished(given))


def _trl(function: Callable[..., Any], asked: Asked) -> Any:
    prompt = asked.item["prompt"] if asked.messages else asked.prompt

    def log_metric(name: str, value: float) -> None:
        key, number = str(name)[:MAX_NAME], float(value)
        is_room = key in asked.said or len(asked.said) < MAX_COMPONENTS - 1  # the reward is counted with them
        if is_room and abs(number) <= MAX_COMPONENT:  # NaN compares to nothing
            asked.said[key] = number

    more = {"trainer_state": None, "log_extra": lambda *_: None, "log_metric": log_metric}
    return _only(_finished(function(prompts=[prompt], completions=[asked.completion], **{**asked.columns, **more})))


def _openrlhf(function: Callable[..., Any], asked: Asked) -> Any:
    given = _finished(function([asked.prompt + asked.text], [asked.prompt], [asked.truth]))
    if not isinstance(given, Mapping):
        return _only(given)
    logs = {"scores": given.get("scores"), **(given.get("extra_logs") or {})}
    named = {name: _only(values) for name, values in logs.items() if values is not None}
    return {**_numbers(named), "reward": _only(given["rewards"])}


def _slime(function: Callable[..., Any], asked: Asked) -> Any:
    sample = SimpleNamespace(
        prompt=asked.prompt,
        response=asked.text,
        label=asked.truth,
        metadata=asked.item,
        status=SimpleNamespace(value="truncated" if asked.finish_reason == "length" else "completed"),
    )
    return _by_score(_finished(function(SimpleNamespace(), sample)))


def _atropos(function: Any, asked: Asked) -> Any:
    made: Any = function() if inspect.isclass(function) else function
    # Not by its call, which makes a reward of 0 of whatever it raises.
    return float(_only(made.compute([asked.completion], **asked.columns))) * made.weight


def _verifiers(function: Any, asked: Asked) -> Any:
    """A function, or a Rubric with several and their weights; each gets by name what it has a parameter for."""
    item = asked.item
    given = {
        "prompt": item["prompt"] if asked.messages else asked.prompt,
        "completion": asked.completion,
        "answer": asked.truth,
        "info": item.get("info", {}),
        "task": item.get("task", "default"),
    }
    given |= {"state": dict(given), **getattr(function, "class_objects", {})}
    parts: dict[str, float] = {}
    total = 0.0
    functions = getattr(function, "funcs", [function])
    for one, weight in zip(functions, getattr(function, "weights", [1.0]), strict=True):
        name = getattr(one, "__name__", type(one).__name__)
        if name in parts:
            name = f"{name} {len(parts) + 1}"
        parts[name] = float(_finished(one(**_wanted(one, given))))
        total += weight * parts[name]
    return {**(parts if len(functions) > 1 else {}), "reward": total}


def _wanted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return {name: value for name, value in given.items() if takes_all or name in parameters}


_CALLS: Mapping[str, Callable[[Callable[..., Any], Asked], Any]] = {
    "verl": _verl,
    "trl": _trl,
    "openrlhf": _openrlhf,
    "slime": _slime,
    "atropos": _atropos,
    "verifiers": _verifiers,
}


def _finished(given: Any) -> Any:
    """What a coroutine returns: there is no event loop in this process, whose sockets it would need."""
    if not inspect.iscoroutine(given):
        return given
    try:
        given.send(None)
    except StopIteration as done:
        return done.value
    given.close()
    raise RuntimeError("the function waits for something outside, which it cannot reach here; serve it as a reward service of your own")


def _only(values: Any) -> Any:
    """The one value of a list, or of a tensor; a null says that the function does not apply."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, list | tuple):
        if len(values) != 1:
            raise ValueError(f"{len(values)} values for one sample")
        return _only(values[0])
    if values is None:
        raise NotApplicableError("the function gives this sample no reward (None)")
    return values


def _by_score(given: Any) -> Any:
    """The numbers of a dictionary, with its `score` as the reward, as verl and slime read it; such functions log texts too."""
    if not isinstance(given, Mapping) or "score" not in given:
        return given
    return {**_numbers({name: value for name, value in given.items() if name != "score"}), "reward": given["score"]}


def _numbers(given: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in given.items() if isinstance(value, int | float)}

"""Classes as TRL's `environment_factory` takes them. Standard library only.

Their `reset` takes the row's columns by name, every other public method but `get_reward` is a tool, and the reward is what
`get_reward` returns, or else the attribute `reward`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

RESERVED = frozenset({"reset", "get_reward"})


def takes_columns(environment: type) -> bool:
    """Whether the class is one of TRL's: `reset` takes `**kwargs`, and not an item and a seed."""
    try:
        parameters = inspect.signature(environment.reset).parameters  # type: ignore[attr-defined]
    except (ValueError, TypeError):
        return False
    is_open = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    return is_open and list(parameters)[1:3] != ["item", "seed"]


def conversation(item: Any, said: object) -> object:
    """What `reset` returned as messages: a text is the end of the prompt's last message. None: the row's prompt."""
    if not isinstance(said, str):
        return said
    prompt = item.get("prompt") if isinstance(item, Mapping) else None
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    match messages:
        case [*before, {"role": str(role), "content": str(content)}]:
            return [*before, {"role": role, "content": content + said}]
    return [{"role": "user", "content": said}]


def judgement(environment: Any) -> object:
    """The reward of the episode; None if the class gives none."""
    if hasattr(type(environment), "get_reward"):
        return environment.get_reward()
    return getattr(environment, "reward", None)

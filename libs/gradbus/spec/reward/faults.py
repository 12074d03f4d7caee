"""A reward without exactly one source, and fields of it that do not go together."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gradbus.errors import Fault
from gradbus.spec.reward.graders import CodeGrader, MultiGrader, PythonGrader, SimpleGrader
from gradbus.spec.reward.section import RewardSpec


def reward_faults(reward: RewardSpec) -> Iterator[Fault]:
    """Faults of a section that is valid field by field."""
    given = [name for name in ("grader", "service", "model") if getattr(reward, name) is not None]
    if len(given) != 1:
        shown = " and ".join(given) or "none of them"
        yield Fault("reward", "a reward has exactly one source", shown, "exactly one of `grader`, `service` and `model`")
    if reward.service is not None and not _is_address(reward.service):
        message = "not the address of a scorer"
        yield Fault("reward.service", message, json.dumps(reward.service)[:80], "grpc://host:port or http(s)://host:port/path")
    if reward.grader is None:
        return
    path = "reward.grader"
    parts = reward.grader.graders if isinstance(reward.grader, MultiGrader) else {}
    graders = {f"{path}.graders.{name}": part for name, part in parts.items()} or {path: reward.grader}
    for at, grader in graders.items():
        if not isinstance(grader, MultiGrader):
            yield from _grader_faults(grader, at, reward.timeout_seconds)


def _grader_faults(grader: SimpleGrader, path: str, timeout_seconds: float) -> Iterator[Fault]:
    if isinstance(grader, PythonGrader) and grader.source is None:
        allowed = "`source`; or `file`, which the command line replaces by its text"
        yield Fault(path, "a python grader needs its source", "no `source`", allowed)
    if not isinstance(grader, CodeGrader):
        return
    if (grader.style == "call") != (grader.function is not None):
        message = 'only tests of style = "call" call a function, and they need its name'
        yield Fault(f"{path}.function", message, json.dumps(grader.function), 'a name with style = "call", none with another style')
    least = 4 * grader.seconds + 1
    if timeout_seconds < least:
        message = f"a program that hangs takes up to {least:g} s by the clock, and its sample would never be scored"
        yield Fault("reward.timeout_seconds", message, f"{timeout_seconds:g}", f"at least {least:g}, or fewer seconds a test")


def _is_address(service: str) -> bool:
    return service.startswith(("grpc://", "http://", "https://")) and service.isprintable() and " " not in service

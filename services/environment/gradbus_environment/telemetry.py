"""Metrics of the environment service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from gradbus.telemetry import PROCESS, observe
from gradbus_environment.contract import Status

_CALL: Final = "gradbus.environment.call"
_STATUS: Final = "gradbus.environment.status"


@contextmanager
def timed(call: str) -> Iterator[None]:
    """Measures the duration of the block: one call, with its wait for a child."""
    began = time.perf_counter()
    try:
        yield
    finally:
        observe("gradbus.environment.duration", time.perf_counter() - began, {_CALL: call})


def count_answer(call: str, status: Status) -> None:
    """Counts an answer."""
    PROCESS.count("gradbus.environment.calls", 1, {_CALL: call, _STATUS: status})


def count_repeat(result: Literal["same", "differs", "failed"]) -> None:
    """Counts an episode that was played again."""
    PROCESS.count("gradbus.environment.repeats", 1, {"gradbus.environment.result": result})


def count_sessions(change: int) -> None:
    """Counts sessions that begin (1) or end (-1)."""
    PROCESS.count("gradbus.environment.sessions", change)


def count_children(change: int) -> None:
    """Counts children that begin (1) or end (-1)."""
    PROCESS.count("gradbus.environment.children", change)

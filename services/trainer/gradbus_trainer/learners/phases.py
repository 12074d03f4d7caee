"""What a learner's step is made of, in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

_MOST = 64


class Phase(NamedTuple):
    """One stretch of a step, in nanoseconds since 1970. A GPU works on after the call that began the work has returned."""

    name: Literal["forward", "backward", "optimise"]
    began: int
    ended: int


class Phases:
    """The phases of one step; of very many micro-batches the first ones."""

    def __init__(self) -> None:
        self.noted: list[Phase] = []

    @contextmanager
    def __call__(self, name: Literal["forward", "backward", "optimise"]) -> Iterator[None]:
        """Notes the block."""
        began = time.time_ns()
        yield
        if len(self.noted) < _MOST or name == "optimise":
            self.noted.append(Phase(name, began, time.time_ns()))

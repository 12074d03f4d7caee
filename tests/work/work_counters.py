"""Counts work exactly and without a clock: executed lines and calls of the repository's Python, and torch's operators."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode
from work_bounds import BOUNDS

SERVICES: Final = ("trainer", "rollout", "conductor")
ROOT: Final = Path(__file__).parents[2]
# The weight store works beside the trainer in a test's process, on nothing that a sample has.
SHIPPED: Final = tuple(f"{ROOT / folder}{os.sep}" for folder in ("libs", "kernels", *(f"services/{name}" for name in SERVICES)))
_SHOWN: Final = 6
_OF_TORCH: Final = ("aten", "mkldnn", "prim", "prims")
_ATTEMPTS: Final = 5
_WAITS: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass
class PythonWork:
    """Work of the shipped Python in all threads: `lines`, by place, are statements and rounds of loops and comprehensions.

    `calls`, by place of the function, are calls of functions and rounds of generators. The event loop enters a coroutine again
    after each wait, how often is chance: a coroutine counts by its lines alone.
    """

    lines: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)


class PythonCounter:
    """Traces this thread, and the threads that start while it traces."""

    def __init__(self, shipped: Sequence[str] | None = None) -> None:
        """`shipped`: the folders whose files count; default: SHIPPED."""
        self._shipped = SHIPPED if shipped is None else tuple(shipped)
        self._work: PythonWork | None = None
        self._places: dict[CodeType, str] = {}

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Traces inside the block; `counting` within it counts."""
        before = sys.gettrace()
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)

    @contextmanager
    def counting(self) -> Iterator[PythonWork]:
        """Counts the block's work."""
        self._work = work = PythonWork()
        try:
            yield work
        finally:
            self._work = None

    def _on_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        if (place := self._places.get(code)) is None:
            name = code.co_filename
            place = self._places[code] = name.removeprefix(f"{ROOT}{os.sep}") if name.startswith(self._shipped) else ""
        if not place:
            return None
        if self._work is not None and not code.co_flags & _WAITS:
            self._work.calls[f"{place}:{code.co_firstlineno}"] += 1
        return self._on_line

    def _on_line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line" and self._work is not None:
            self._work.lines[f"{self._places[frame.f_code]}:{frame.f_lineno}"] += 1
        return self._on_line


class OperatorCounter(TorchDispatchMode):
    """Counts the operators that torch executes inside the block: also those of the backward pass, and those within our own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchDispatchMode."""
        self.counts[str(func)] += 1
        with contextlib.nullcontext() if func.namespace in _OF_TORCH else self:
            return func(*args, **(kwargs or {}))


async def least(measure: Callable[[], Awaitable[Sequence[Counter[str]]]]) -> list[Counter[str]]:
    """Of each place its least count in some attempts: polls, leases and retries go by the clock and only add."""
    attempts = [await measure() for _ in range(_ATTEMPTS)]
    return [Counter({place: min(one[place] for one in of) for place in of[0]}) for of in zip(*attempts, strict=True)]


def growth(small: Counter[str], large: Counter[str], added: int) -> dict[str, float]:
    """By place: its count for each of the `added` samples, groups or steps, to halves: less than that is no work for each of them."""
    counts = {place: round(2 * (large[place] - small[place]) / added) / 2 for place in small | large}
    return {place: count for place, count in counts.items() if count > 0}


def check(name: str, counts: Mapping[str, float]) -> None:
    """Holds the sum to its bound. A failure names the places with the highest counts."""
    counted, bound = sum(counts.values()), BOUNDS[name]
    highest = sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN]
    report = "\n".join([f"{name}: {counted:g} counted, the bound is {bound:g}", *(f"  {count:g} {place}" for place, count in highest)])
    print(report)
    advice = "Do the work of all samples at once, or argue in tests/work/work_bounds.py why the bound must rise."
    assert counted <= bound, f"{report}\n{advice}"

"""Graders that take time in proportion to their texts, in a thread of the run's own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from gradbus.errors import GraderError
from gradbus.graders import GradeFunction, QuickGrader, ScoreResult, compiled_grader
from gradbus_reward.graders.base import NOT_REACHED, Parts, Sample, not_gradable, template_inputs


class QuickParts:
    """Text comparisons and graders of a text's form."""

    def __init__(self, parts: Mapping[str, QuickGrader]) -> None:
        """Raises GraderError for a template that is not well formed."""
        self._functions = {name: compiled_grader(part) for name, part in parts.items()}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compare")

    @property
    def names(self) -> Sequence[str]:
        """Its parts."""
        return tuple(self._functions)

    async def grade(self, samples: Sequence[Sample], seconds: float) -> Sequence[Parts]:
        """The results of every sample."""
        # In a thread of this run's own, so that long texts hold up no other run.
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._compare, samples, time.monotonic() + seconds)

    async def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compare(self, samples: Sequence[Sample], end: float) -> list[Parts]:
        parse = cache(json.loads)  # the samples of a group have the same row
        return [{name: _grade(function, sample, parse, end) for name, function in self._functions.items()} for sample in samples]


def _grade(function: GradeFunction, sample: Sample, parse: Callable[[str], Any], end: float) -> ScoreResult:
    if time.monotonic() > end:
        return NOT_REACHED
    try:
        return ScoreResult(function(*template_inputs(sample, parse)))
    except (GraderError, ValueError) as error:
        return not_gradable(error)

"""Parts that are graded in confined processes, with what happens to samples that stop these."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from gradbus.graders import ScoreResult
from gradbus.sandbox.bounds import MAX_REASON
from gradbus_reward.graders.base import NOT_REACHED, Parts, Sample, in_range
from gradbus_reward.sandbox.pool import GradeCall, GraderPool
from gradbus_reward.sandbox.process import Row

ATTEMPTS = 3
"""Times that a sample may stop a grader's process. Then it is `invalid`, so that the run does not wait for it forever."""
MAX_REMEMBERED = 4096

_Key = tuple[str, int]
"""Sample and the hash of its text, because held-out samples of all versions have the same ids."""


class ConfinedParts:
    """Grades rows of text in a pool of processes."""

    def __init__(self, names: Sequence[str], pool: GraderPool, *, prompts: bool = False) -> None:
        """`prompts`: whether a part reads them."""
        self._names = tuple(names)
        self._prompts = prompts
        self._pool = pool
        self._stops = _StopCounts()

    @property
    def names(self) -> Sequence[str]:
        """Its parts."""
        return self._names

    async def grade(self, samples: Sequence[Sample], seconds: float) -> Sequence[Parts]:
        """The results of every sample, by its output text, finish reason, item and prompt."""
        rows = [
            (sample.response, sample.finish_reason, sample.item_json or "{}", *((sample.prompt,) if self._prompts else ()))
            for sample in samples
        ]
        return await self.grade_rows([(sample.sample_id, hash(sample.response)) for sample in samples], rows, seconds)

    async def grade_rows(self, ids: Sequence[_Key], rows: Sequence[Row], seconds: float) -> list[Parts]:
        """The results of every row."""
        suspects = frozenset(n for n, key in enumerate(ids) if self._stops.count(key)) if self._stops else frozenset()
        call = await self._pool.grade(rows, suspects, max(seconds, 0.0))
        failed = self._failed(ids, call, has_results=self._pool.has_results)
        return [
            self._read(call.results[n]) if n in call.results else dict.fromkeys(self._names, failed.get(n, NOT_REACHED))
            for n in range(len(rows))
        ]

    async def close(self) -> None:
        """Stops the processes."""
        await self._pool.close()

    def _failed(self, ids: Sequence[_Key], call: GradeCall, *, has_results: bool) -> dict[int, ScoreResult]:
        """The results of rows that stopped the grader or, in a call without any result, may have."""
        hopeless = dict.fromkeys(range(len(ids)), call.stops[-1]) if call.stops and not call.results else {}
        if has_results:
            # It hangs or dies now on whatever it gets: finding that out sample by sample would take hours.
            return {n: self._stopped(ids[n], reason) for n, reason in (hopeless or call.stopped).items()}
        for n in call.stopped:
            self._stops.add(ids[n])  # the next call begins with the others
        return {n: ScoreResult.error(f"the grader scores no sample: {reason}", permanent=True) for n, reason in hopeless.items()}

    def _stopped(self, key: _Key, reason: str) -> ScoreResult:
        """The result of a sample that stopped the grader once more."""
        self._stops.add(key)
        if self._stops.count(key) < ATTEMPTS:
            return ScoreResult.error(reason)
        return ScoreResult.invalid(f"given up after {ATTEMPTS} attempts: {reason}")

    def _read(self, results: Mapping[str, Any]) -> Parts:
        return {name: _read_part(results.get(name)) for name in self._names}


class _StopCounts:
    """How often each sample stopped a process. The oldest counts are forgotten first."""

    def __init__(self) -> None:
        self._counts: OrderedDict[_Key, int] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def count(self, key: _Key) -> int:
        return self._counts.get(key, 0)

    def add(self, key: _Key) -> None:
        self._counts[key] = self.count(key) + 1
        self._counts.move_to_end(key)
        if len(self._counts) > MAX_REMEMBERED:
            self._counts.popitem(last=False)


def _read_part(sent: object) -> ScoreResult:
    """A part's result from a confined process, which may send anything: [reward, components] or a reason."""
    match sent:
        case [int() | float() as reward, dict() as components] if _is_finite(reward) and all(map(_is_finite, components.values())):
            return in_range(ScoreResult(float(reward), components))
        case str():
            # Trying again would not change what the user's code does with the sample.
            return ScoreResult.invalid(sent[:MAX_REASON])
    return ScoreResult.error("the grader's process broke its protocol; do not use its open files", permanent=True)


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond a double
        return False

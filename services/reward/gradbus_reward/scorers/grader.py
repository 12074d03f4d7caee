"""The built-in graders: text comparisons here, users' Python in confined processes, a formula over both."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from gradbus.errors import GraderError, ScorerError
from gradbus.graders import Formula, Judge, Result, compiled_grader
from gradbus.graders.simple import UnjudgeableError
from gradbus.spec import Grader, MultiGrader, PythonGrader
from gradbus.v1 import reward_pb2
from gradbus_reward.grade_traces import graded
from gradbus_reward.sandbox.pool import GraderPool, PoolSettings
from gradbus_reward.scorers.results import MAX_COMPONENTS, MAX_NAME, MAX_REASON, all_failed, answers

ATTEMPTS = 3
"""Times a sample may stop a python grader's process; then it is `invalid`, for the run must not wait on it forever."""
REMEMBERED = 4096
SINGLE = "grader"
"""Name of the only part of a grader that is not `multi`."""

# A hanging grader must still be answered for within the caller's deadline.
_ANSWERING_SECONDS = 0.25

Sample = reward_pb2.ScoreSample
Parts = dict[str, Result]
_Key = tuple[str, str, int]
"""Run, sample and the hash of its text: held-out samples of all versions have the same ids."""


class GraderScorer:
    """Judges by the `grader` of a run's `[reward]` section."""

    def __init__(self, grader: Grader, *, python_graders: bool, pool: PoolSettings) -> None:
        """Raises GraderError for a template or formula that is not well formed."""
        parts = grader.graders if isinstance(grader, MultiGrader) else {SINGLE: grader}
        self._judges: dict[str, Judge] = {name: compiled_grader(part) for name, part in parts.items() if not isinstance(part, PythonGrader)}
        self._formula = _formula(grader, set(parts)) if isinstance(grader, MultiGrader) else None
        sources = {name: part.source or "" for name, part in parts.items() if isinstance(part, PythonGrader)}
        self._allowed = python_graders or not sources
        self._pool = GraderPool(sources, pool) if sources else None
        self._sources = tuple(sources)
        self._attempts = _Attempts()

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One answer per sample, within the deadline."""
        samples = request.samples
        if not self._allowed:
            reason = "python graders are off here; set GRADBUS_PYTHON_GRADERS=true, or score by a service of your own"
            return all_failed(samples, reason, "refused")
        end = time.monotonic() + deadline_seconds - min(_ANSWERING_SECONDS, deadline_seconds / 4)
        try:
            with graded(self._judges, samples):
                # In a thread, so that long texts do not stop the event loop.
                compared = await asyncio.to_thread(self._compared, samples, end)
            with graded(self._sources, samples):
                run = await self._graded(request.run_id, samples, end - time.monotonic())
        except ScorerError as error:
            return all_failed(samples, str(error), "refused")
        return answers(
            samples,
            [self._joined(left | right).message(sample.sample_id) for sample, left, right in zip(samples, compared, run, strict=True)],
        )

    async def close(self) -> None:
        """Stop the processes."""
        if self._pool is not None:
            await self._pool.close()

    def _compared(self, samples: Iterable[Sample], end: float) -> list[Parts]:
        parsed = cache(json.loads)  # the samples of a group share their row
        return [{name: _judged(judge, sample, parsed, end) for name, judge in self._judges.items()} for sample in samples]

    async def _graded(self, run_id: str, samples: Sequence[Sample], seconds: float) -> list[Parts]:
        """The python parts of every sample."""
        if self._pool is None:
            return [{} for _ in samples]
        ids = [(run_id, sample.sample_id, hash(sample.response)) for sample in samples]
        rows = [(sample.response, sample.finish_reason, sample.item_json or "{}") for sample in samples]
        suspects = frozenset(n for n, key in enumerate(ids) if self._attempts.count(key))
        call = await self._pool.grade(rows, suspects, max(seconds, 0.0))
        # A grader that stopped on one and answered none hangs on all: waiting for each to be found would take hours.
        for n in range(len(samples)) if call.stopped and not call.answers else call.stopped:
            self._attempts.add(ids[n])
        reasons = [
            call.stopped.get(n, "the time was up before this sample's turn; raise reward.timeout_seconds") for n in range(len(samples))
        ]
        return [
            self._read(call.answers[n]) if n in call.answers else dict.fromkeys(self._sources, self._unanswered(ids[n], reasons[n]))
            for n in range(len(samples))
        ]

    def _unanswered(self, key: _Key, reason: str) -> Result:
        if self._attempts.count(key) < ATTEMPTS:
            return Result.error(reason)
        return Result.invalid(f"given up after {ATTEMPTS} attempts: {reason}")

    def _read(self, answer: Mapping[str, Any]) -> Parts:
        return {name: _read_part(answer.get(name)) for name in self._sources}

    def _joined(self, parts: Parts) -> Result:
        """The sample's result: an error of any part is its error, else an invalid part makes it invalid."""
        if failed := [(part.status, name) for name, part in parts.items() if part.status != "ok"]:
            name = next((name for status, name in failed if status == "error"), failed[0][1])
            part = parts[name]
            return part if self._formula is None else Result(status=part.status, reason=f"{name}: {part.reason}")
        if self._formula is None:
            return parts[SINGLE]
        components = {name: part.reward for name, part in parts.items()}
        inner = ((f"{name}.{key}", value) for name, part in parts.items() for key, value in part.components.items())
        room = max(0, MAX_COMPONENTS - len(components))
        shown = dict(islice(((name, value) for name, value in inner if len(name) <= MAX_NAME), room))
        try:
            return Result(self._formula.value(components), components | shown)
        except GraderError as error:
            return Result.invalid(str(error))


class _Attempts:
    """How often each sample stopped a process; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._counts: OrderedDict[_Key, int] = OrderedDict()

    def count(self, key: _Key) -> int:
        return self._counts.get(key, 0)

    def add(self, key: _Key) -> None:
        self._counts[key] = self.count(key) + 1
        self._counts.move_to_end(key)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)


def _formula(grader: MultiGrader, names: set[str]) -> Formula:
    formula = Formula(grader.calculate_output)
    if unknown := formula.names - names:
        raise GraderError(f"formula {formula.text!r} names no grader: {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    return formula


def _judged(judge: Judge, sample: Sample, parsed: Callable[[str], Any], end: float) -> Result:
    if time.monotonic() > end:
        return Result.error("the time was up before this sample's turn; raise reward.timeout_seconds")
    try:
        return Result(judge({"output_text": sample.response, "finish_reason": sample.finish_reason}, parsed(sample.item_json or "{}")))
    except UnjudgeableError as error:
        return Result.invalid(str(error))
    except (GraderError, ValueError) as error:
        return Result.error(str(error))


def _read_part(given: object) -> Result:
    """A part's answer as a confined process gave it, which may be anything: [reward, components] or a reason."""
    match given:
        case [int() | float() as reward, dict() as components] if all(_is_finite(value) for value in (reward, *components.values())):
            return Result(float(reward), components)
        case str():
            # What the user's code does with a sample does not change by trying again.
            return Result.invalid(given[:MAX_REASON])
    return Result.error("the grader's process did not answer in its protocol; leave its open files alone")


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond a double
        return False

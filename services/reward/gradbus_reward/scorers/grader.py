"""The built-in graders: text comparisons in this process, users' Python in confined processes, a formula over both."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

from gradbus.algorithms import MAX_REWARD
from gradbus.errors import GraderError, UserCodeError
from gradbus.graders import Formula, GradeFunction, InvalidSampleError, ScoreResult, compiled_grader
from gradbus.sandbox.bounds import MAX_COMPONENT, MAX_COMPONENTS, MAX_NAME, MAX_REASON
from gradbus.sandbox.budget import ProcessBudget
from gradbus.sandbox.process import SourceError
from gradbus.spec import Grader, MultiGrader, PythonGrader
from gradbus.v1 import reward_pb2
from gradbus_reward.sandbox.pool import GradeCall, GraderPool, PoolSettings
from gradbus_reward.sandbox.process import Row
from gradbus_reward.scorers.results import failed_results, grader_results
from gradbus_reward.scorers.telemetry import grade_spans

ATTEMPTS = 3
"""Times that a sample may stop a Python grader's process. Then it is `invalid`, so that the run does not wait for it forever."""
MAX_REMEMBERED = 4096
SINGLE = "grader"
"""Part name of a grader that is not `multi`."""

_NOT_REACHED = ScoreResult.error("no time was left for this sample; raise reward.timeout_seconds, or make the grader faster")
# Of the deadline, for the response after a grader that hangs.
_RESPONSE_SECONDS = 0.25

Sample = reward_pb2.ScoreSample
Parts = dict[str, ScoreResult]
_Key = tuple[str, int]
"""Sample and the hash of its text, because held-out samples of all versions have the same ids."""


class GraderScorer:
    """Scores by the `grader` of one run's `[reward]` section."""

    def __init__(self, grader: Grader, *, python_graders: bool, pool: PoolSettings, budget: ProcessBudget) -> None:
        """Raises GraderError for a template or formula that is not well formed."""
        parts = grader.graders if isinstance(grader, MultiGrader) else {SINGLE: grader}
        self._comparisons: dict[str, GradeFunction] = {
            name: compiled_grader(part) for name, part in parts.items() if not isinstance(part, PythonGrader)
        }
        self._formula = _formula(grader, set(parts)) if isinstance(grader, MultiGrader) else None
        sources = {name: part.source or "" for name, part in parts.items() if isinstance(part, PythonGrader)}
        self._allowed = python_graders or not sources
        self._pool = GraderPool(sources, pool, budget) if sources and python_graders else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compare")
        self._sources = tuple(sources)
        self._stops = _StopCounts()

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample, within the deadline."""
        samples = list(request.samples)  # while the list holds them, protobuf does not make new objects for them at each pass
        if not self._allowed:
            reason = "python graders are off here; set GRADBUS_PYTHON_GRADERS=true, or use a service of your own"
            return failed_results(samples, reason, "grader")
        rows = [(sample.response, sample.finish_reason, sample.item_json or "{}") for sample in samples]
        firsts: dict[Row, Sample] = {}  # the samples of a group have the same item, and often the same text: these are graded once
        for row, sample in zip(rows, samples, strict=True):
            firsts.setdefault(row, sample)
        end = time.monotonic() + deadline_seconds - min(_RESPONSE_SECONDS, deadline_seconds / 4)
        try:
            with grade_spans(self._comparisons, samples):
                # In a thread of this run's own, so that long texts hold up no other run.
                compared = await asyncio.get_running_loop().run_in_executor(self._thread, self._compare, list(firsts), end)
            with grade_spans(self._sources, samples):
                graded = await self._grade(firsts, end - time.monotonic())
        except SourceError as error:
            return failed_results(samples, str(error), "grader")
        except UserCodeError as error:
            return failed_results(samples, str(error), "refused")
        results = {row: self._combined(left | right) for row, left, right in zip(firsts, compared, graded, strict=True)}
        return grader_results(samples, [results[row] for row in rows])

    async def close(self) -> None:
        """Stops the processes and the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            await self._pool.close()

    def _compare(self, rows: Sequence[Row], end: float) -> list[Parts]:
        parse = cache(json.loads)  # the samples of a group have the same item
        return [{name: _compare_sample(function, row, parse, end) for name, function in self._comparisons.items()} for row in rows]

    async def _grade(self, firsts: Mapping[Row, Sample], seconds: float) -> list[Parts]:
        """The Python parts of every row; the first sample that has it stands for all that do."""
        if self._pool is None:
            return [{} for _ in firsts]
        ids = [(sample.sample_id, hash(row[0])) for row, sample in firsts.items()]
        suspects = frozenset(n for n, key in enumerate(ids) if self._stops.count(key)) if self._stops else frozenset()
        call = await self._pool.grade(list(firsts), suspects, max(seconds, 0.0))
        failed = self._failed(ids, call, has_results=self._pool.has_results)
        return [
            self._read(call.results[n]) if n in call.results else dict.fromkeys(self._sources, failed.get(n, _NOT_REACHED))
            for n in range(len(firsts))
        ]

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
        return {name: _read_part(results.get(name)) for name in self._sources}

    def _combined(self, parts: Parts) -> ScoreResult:
        """The sample's result: the error of a part if there is one, else an invalid part's reason, else the value of the formula."""
        components: dict[str, float] = {}
        has_inner = False
        for name, part in parts.items():
            if part.status != "ok":
                return self._failed_part(parts)
            components[name] = part.reward
            has_inner = has_inner or bool(part.components)
        if self._formula is None:
            return parts[SINGLE]
        try:
            value = self._formula.value(components)
        except GraderError as error:
            return ScoreResult.invalid(str(error))
        return _in_range(ScoreResult(value, components | _inner_components(parts) if has_inner else components))

    def _failed_part(self, parts: Parts) -> ScoreResult:
        """The first part with an error, else the first that is invalid, with its name in the reason."""
        failed = [(part.status, name) for name, part in parts.items() if part.status != "ok"]
        name = next((name for status, name in failed if status == "error"), failed[0][1])
        part = parts[name]
        return part if self._formula is None else replace(part, reason=f"{name}: {part.reason}")


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


def _formula(grader: MultiGrader, names: set[str]) -> Formula:
    formula = Formula(grader.calculate_output)
    if unknown := formula.names - names:
        raise GraderError(f"formula {formula.text!r} names no grader: {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    return formula


def _inner_components(parts: Parts) -> dict[str, float]:
    """The components of the parts, named `part.component`, as many as fit beside the parts themselves."""
    inner = ((f"{name}.{key}", value) for name, part in parts.items() for key, value in part.components.items())
    return dict(islice(((name, value) for name, value in inner if len(name) <= MAX_NAME), max(0, MAX_COMPONENTS - len(parts))))


def _compare_sample(function: GradeFunction, row: Row, parse: Callable[[str], Any], end: float) -> ScoreResult:
    if time.monotonic() > end:
        return _NOT_REACHED
    output_text, finish_reason, item_json = row
    try:
        return ScoreResult(function({"output_text": output_text, "finish_reason": finish_reason}, parse(item_json)))
    except InvalidSampleError as error:
        return ScoreResult.invalid(str(error))
    except (GraderError, ValueError) as error:
        return ScoreResult.error(str(error), permanent=True)


def _read_part(sent: object) -> ScoreResult:
    """A part's result from a confined process, which may send anything: [reward, components] or a reason."""
    match sent:
        case [int() | float() as reward, dict() as components] if all(_is_finite(value) for value in (reward, *components.values())):
            return _in_range(ScoreResult(float(reward), components))
        case str():
            # Trying again would not change what the user's code does with the sample.
            return ScoreResult.invalid(sent[:MAX_REASON])
    return ScoreResult.error("the grader's process broke its protocol; do not use its open files", permanent=True)


def _in_range(result: ScoreResult) -> ScoreResult:
    """The result, or `invalid`: to grade the sample again would give the same number."""
    if abs(result.reward) > MAX_REWARD:
        return ScoreResult.invalid(f"the grader's reward is {result.reward:g}; scale it to at most {MAX_REWARD:g}")
    for name, value in result.components.items():
        if abs(value) > MAX_COMPONENT:
            return ScoreResult.invalid(f"the grader's component {name[:80]!r} is {value:g}; scale it to at most {MAX_COMPONENT:g}")
    return result


def _is_finite(value: object) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond a double
        return False

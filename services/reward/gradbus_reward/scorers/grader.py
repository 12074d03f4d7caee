"""The grader of a run: its parts, each graded in its own way, and the formula that joins them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gradbus.errors import GraderError, UserCodeError
from gradbus.graders import QUICK_GRADERS, Formula, ScoreResult
from gradbus.sandbox.bounds import MAX_COMPONENTS, MAX_NAME
from gradbus.sandbox.process import SourceError
from gradbus.spec import CodeGrader, Grader, MultiGrader, PythonGrader, ScoreModelGrader, SimpleGrader
from gradbus.v1 import reward_pb2
from gradbus_reward.graders.base import Capacity, Owner, PartGrader, Parts, in_range
from gradbus_reward.graders.built_in import BUILT_IN_GRADERS, BuiltInParts
from gradbus_reward.graders.code import CodeParts
from gradbus_reward.graders.functions import function_parts
from gradbus_reward.graders.judge import JudgeAccess, JudgeParts
from gradbus_reward.graders.quick import QuickParts
from gradbus_reward.sandbox.pool import PoolSettings
from gradbus_reward.scorers.results import failed_results, grader_results
from gradbus_reward.scorers.telemetry import grade_spans

Row = tuple[str, str, str, str]
"""Response, finish reason, item and prompt of a sample: all that a part reads."""
SINGLE = "grader"
"""Part name of a grader that is not `multi`."""

# Of the deadline, for the response after a grader that hangs.
_RESPONSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class GraderLimits:
    """What the operator allows graders."""

    users_code: bool = False
    """Whether users' Python, and programs of the policy's, run here, confined."""
    modules: Collection[str] = ()
    """Modules whose functions may be graders."""
    pool: PoolSettings = field(default_factory=PoolSettings)
    judges: JudgeAccess = field(default_factory=JudgeAccess)


class GraderScorer:
    """Scores by the `grader` of one run's `[reward]` section."""

    def __init__(self, grader: Grader, limits: GraderLimits, capacity: Capacity, owner: Owner) -> None:
        """Raises GraderError for a template or formula that is not well formed."""
        parts: Mapping[str, SimpleGrader] = grader.graders if isinstance(grader, MultiGrader) else {SINGLE: grader}
        self._formula = _formula(grader, set(parts)) if isinstance(grader, MultiGrader) else None
        self._names = tuple(parts)
        self._allowed = limits.users_code or not any(part.runs_users_code for part in parts.values())
        self._graders = list(_part_graders(parts, limits, capacity, owner)) if self._allowed else []

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample, within the deadline."""
        samples = list(request.samples)  # while the list holds them, protobuf does not make new objects for them at each pass
        if not self._allowed:
            reason = "graders of type python and code are off here; set GRADBUS_PYTHON_GRADERS=true, or use a service of your own"
            return failed_results(samples, reason, "grader")
        rows = [(sample.response, sample.finish_reason, sample.item_json, sample.prompt) for sample in samples]
        # The samples of a group have the same item, and often the same text: these are graded once.
        firsts: dict[Row, reward_pb2.ScoreSample] = {}
        for row, sample in zip(rows, samples, strict=True):
            firsts.setdefault(row, sample)
        end = time.monotonic() + deadline_seconds - min(_RESPONSE_SECONDS, deadline_seconds / 4)
        graded: list[Parts] = [{} for _ in firsts]
        try:
            for grader in self._graders:
                with grade_spans(grader.names, samples):
                    found = await grader.grade(list(firsts.values()), end - time.monotonic())
                graded = [parts | more for parts, more in zip(graded, found, strict=True)]
        except SourceError as error:
            return failed_results(samples, str(error), "grader")
        except UserCodeError as error:
            return failed_results(samples, str(error), "refused")
        combined = (self._combined({name: parts[name] for name in self._names}) for parts in graded)
        results = dict(zip(firsts, combined, strict=True))
        return grader_results(samples, [results[row] for row in rows])

    async def close(self) -> None:
        """Stops processes and threads."""
        await asyncio.gather(*(grader.close() for grader in self._graders))

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
        return in_range(ScoreResult(value, components | _inner_components(parts) if has_inner else components))

    def _failed_part(self, parts: Parts) -> ScoreResult:
        """The first part with an error, else the first that is invalid, with its name in the reason."""
        failed = [(part.status, name) for name, part in parts.items() if part.status != "ok"]
        name = next((name for status, name in failed if status == "error"), failed[0][1])
        part = parts[name]
        return part if self._formula is None else replace(part, reason=f"{name}: {part.reason}")


def _part_graders(parts: Mapping[str, SimpleGrader], limits: GraderLimits, capacity: Capacity, owner: Owner) -> Iterator[PartGrader]:
    """What grades the parts, the quickest first."""
    if quick := _of(parts, QUICK_GRADERS):
        yield QuickParts(quick)
    if built_in := _of(parts, BUILT_IN_GRADERS):
        yield BuiltInParts(built_in, limits.pool, capacity.processes)
    if python := _of(parts, (PythonGrader,)):
        yield from function_parts(python, limits.pool, capacity.processes, limits.modules)
    if code := _of(parts, (CodeGrader,)):
        yield CodeParts(code, capacity.sandboxes, owner)
    if judges := _of(parts, (ScoreModelGrader,)):
        yield JudgeParts(judges, limits.judges, capacity.verdicts, owner)


def _of(parts: Mapping[str, SimpleGrader], kinds: tuple[type[Any], ...]) -> dict[str, Any]:
    """The parts of these kinds."""
    return {name: part for name, part in parts.items() if isinstance(part, kinds)}


def _formula(grader: MultiGrader, names: set[str]) -> Formula:
    formula = Formula(grader.calculate_output)
    if unknown := formula.names - names:
        raise GraderError(f"formula {formula.text!r} names no grader: {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    return formula


def _inner_components(parts: Parts) -> dict[str, float]:
    """The components of the parts, named `part.component`, as many as fit beside the parts themselves."""
    inner = ((f"{name}.{key}", value) for name, part in parts.items() for key, value in part.components.items())
    return dict(islice(((name, value) for name, value in inner if len(name) <= MAX_NAME), max(0, MAX_COMPONENTS - len(parts))))

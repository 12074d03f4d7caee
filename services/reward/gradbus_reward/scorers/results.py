"""From whatever a scorer returned to exactly one valid result per sample of the request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import structlog

from gradbus.algorithms import MAX_REWARD
from gradbus.errors import ScorerError
from gradbus.graders import ScoreResult
from gradbus.graders.result import STATUS
from gradbus.sandbox.bounds import MAX_COMPONENT, MAX_COMPONENTS, MAX_NAME, MAX_REASON
from gradbus.telemetry import PROCESS
from gradbus.v1 import reward_pb2

MAX_RESPONSE_BYTES = 8 << 20
_BYTES_PER_SAMPLE = 16 << 10
_RESULTS_PER_SAMPLE = 16
_VALUES_PER_SAMPLE = 1024
"""Of JSON, the commas of texts included. A value takes 30 times the memory of its text, and no thread runs while JSON is parsed."""
_PIECES_PER_SAMPLE = 64
_EXTRA_SAMPLES = 64
"""Added to the samples of a request, so that small ones get room too."""

_log = structlog.get_logger(__name__)


def max_response_bytes(samples: int) -> int:
    """Size limit of the response to a request with so many samples, because JSON becomes many times larger in memory."""
    return min(MAX_RESPONSE_BYTES, (samples + _EXTRA_SAMPLES) * _BYTES_PER_SAMPLE)


def max_values(samples: int) -> int:
    """Limit of the values in the response to a request with so many samples."""
    return (samples + _EXTRA_SAMPLES) * _VALUES_PER_SAMPLE


def max_pieces(samples: int) -> int:
    """Limit of the pieces in which a response comes: each costs as much as some kilobytes."""
    return (samples + _EXTRA_SAMPLES) * _PIECES_PER_SAMPLE


def check_number(results: int, samples: int) -> None:
    """Raises ScorerError if there are far more results than samples: megabytes of empty ones would take long to read."""
    if results > (samples + _EXTRA_SAMPLES) * _RESULTS_PER_SAMPLE:
        raise ScorerError(f"the scorer returned {results} results for {samples} samples; return one for each")


Cause = Literal["timeout", "unreachable", "refused", "grader", "scorer", "malformed", "missing"]
"""Why samples are an `error`: no response in time; no connection; a refused call; a grader that cannot work; the scorer's own `error`;
a result that breaks the contract; no result for the sample."""

_PERMANENT: frozenset[Cause] = frozenset({"grader", "malformed", "missing"})
"""The fault is in the run's code, not in the way to it: the same would happen again."""


def failed_results(samples: Sequence[reward_pb2.ScoreSample], reason: str, cause: Cause) -> list[reward_pb2.SampleReward]:
    """`error` with the same reason for every sample."""
    _count(cause, len(samples))
    result = ScoreResult.error(reason[:MAX_REASON], permanent=cause in _PERMANENT)
    return [result.message(sample.sample_id) for sample in samples]


def complete_results(
    samples: Sequence[reward_pb2.ScoreSample], returned: Iterable[reward_pb2.SampleReward]
) -> list[reward_pb2.SampleReward]:
    """One result per sample, in the order of `samples`, matched by id.

    A result that is missing, doubled, out of range or without a known status becomes a permanent `error` with a reason. Results for
    ids that are not among `samples` are logged and left out.
    """
    by_id: dict[str, list[reward_pb2.SampleReward]] = {sample.sample_id: [] for sample in samples}
    unknown: list[str] = []
    for result in returned:
        if result.sample_id in by_id:
            by_id[result.sample_id].append(result)
        else:
            unknown.append(result.sample_id)
    if unknown:
        _log.warning("scorer_returned_unknown_ids", count=len(unknown), first=unknown[0][:MAX_REASON])
    return [_single_result(sample.sample_id, by_id[sample.sample_id], len(unknown)) for sample in samples]


def grader_results(samples: Sequence[reward_pb2.ScoreSample], results: Iterable[ScoreResult]) -> list[reward_pb2.SampleReward]:
    """The results of a built-in grader, one per sample, in the order of `samples`. Its rewards and components are in range already."""
    return [
        result.message(sample.sample_id) if result.status == "ok" else _checked(result.message(sample.sample_id))
        for sample, result in zip(samples, results, strict=True)
    ]


def _single_result(sample_id: str, results: Sequence[reward_pb2.SampleReward], unknown: int) -> reward_pb2.SampleReward:
    if len(results) == 1:
        return _checked(results[0])
    if results:
        return _failed(sample_id, f"the scorer returned {len(results)} results for this sample; return one", "malformed")
    others = f", and {unknown} result(s) for ids it was not asked about" if unknown else ""
    reason = f"the scorer returned no result for this sample{others}; return one for every sample_id of the request"
    return _failed(sample_id, reason, "missing")


def _checked(result: reward_pb2.SampleReward) -> reward_pb2.SampleReward:
    if reason := _fault(result):
        return _failed(result.sample_id, reason, "malformed")
    # A new message: what a scorer sends beside these fields, e.g. fields that the contract does not have, is not stored.
    if result.status == reward_pb2.REWARD_STATUS_OK:
        return reward_pb2.SampleReward(
            sample_id=result.sample_id,
            status=result.status,
            reward=result.reward,
            components=result.components,
            reason=result.reason[:MAX_REASON],
        )
    if result.status == reward_pb2.REWARD_STATUS_ERROR:
        _count("scorer")
    # Without the reward, so that the reward of a sample that was not scored cannot enter any mean.
    return reward_pb2.SampleReward(
        sample_id=result.sample_id,
        status=result.status,
        reason=result.reason[:MAX_REASON] or "the scorer gave no reason",
        permanent=result.permanent and result.status == reward_pb2.REWARD_STATUS_ERROR,
    )


def _fault(result: reward_pb2.SampleReward) -> str:
    if result.status not in STATUS.values():
        return f"the scorer returned the unknown status {result.status}; use ok, invalid or error"
    if result.status != reward_pb2.REWARD_STATUS_OK:
        return ""
    if not abs(result.reward) <= MAX_REWARD:  # NaN compares to nothing
        return f"the scorer's reward is {result.reward}; return a number within ±{MAX_REWARD:g}, or `invalid`"
    return _component_fault(result)


def _component_fault(result: reward_pb2.SampleReward) -> str:
    if len(result.components) > MAX_COMPONENTS:
        return f"the scorer returned {len(result.components)} components; return at most {MAX_COMPONENTS}"
    components = result.components
    for name in components:
        value = components[name]
        if len(name) > MAX_NAME:
            return f"the scorer's component {name[:MAX_NAME]!r}... has a name of {len(name)} characters; use at most {MAX_NAME}"
        if not abs(value) <= MAX_COMPONENT:
            return f"the scorer's component {name!r} is {value}; leave it out, or scale it to at most {MAX_COMPONENT:g}"
    return ""


def _failed(sample_id: str, reason: str, cause: Cause) -> reward_pb2.SampleReward:
    _count(cause)
    return ScoreResult.error(reason, permanent=cause in _PERMANENT).message(sample_id)


def _count(cause: Cause, samples: int = 1) -> None:
    PROCESS.count("gradbus.reward.failures", samples, {"gradbus.reward.cause": cause})

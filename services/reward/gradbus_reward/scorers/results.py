"""From whatever a scorer returned to exactly one valid result per sample of the request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import structlog

from gradbus.graders import ScoreResult
from gradbus.graders.result import STATUS
from gradbus.telemetry import PROCESS
from gradbus.v1 import reward_pb2

MAX_REASON = 500  # characters
MAX_COMPONENTS = 64
MAX_NAME = 200  # characters
_BYTES_PER_SAMPLE = 64 << 10
_MAX_RESPONSE_BYTES = 64 << 20

_log = structlog.get_logger(__name__)


def max_response_bytes(samples: int) -> int:
    """Size limit of the response to a request with so many samples, because JSON becomes many times larger in memory."""
    return min(_MAX_RESPONSE_BYTES, (samples + 16) * _BYTES_PER_SAMPLE)


Cause = Literal["timeout", "unreachable", "refused", "scorer", "malformed", "missing"]
"""Why samples are an `error`, for metrics: no response in time; no connection; a refused call; the scorer's own `error`; a result
that breaks the contract; no result for the sample."""


def failed_results(samples: Sequence[reward_pb2.ScoreSample], reason: str, cause: Cause) -> list[reward_pb2.SampleReward]:
    """`error` with the same reason for every sample."""
    _count(cause, len(samples))
    return [ScoreResult.error(reason[:MAX_REASON]).message(sample.sample_id) for sample in samples]


def complete_results(
    samples: Sequence[reward_pb2.ScoreSample], returned: Iterable[reward_pb2.SampleReward]
) -> list[reward_pb2.SampleReward]:
    """One result per sample, in the order of `samples`, matched by id.

    A result that is missing, doubled, not finite or without a known status becomes an `error` with a reason. Results for ids
    that are not among `samples` are logged and left out.
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


def _single_result(sample_id: str, results: Sequence[reward_pb2.SampleReward], unknown: int) -> reward_pb2.SampleReward:
    if len(results) == 1:
        return _checked(results[0])
    _count("malformed" if results else "missing")
    if results:
        return ScoreResult.error(f"the scorer returned {len(results)} results for this sample; return one").message(sample_id)
    others = f", and {unknown} result(s) for ids it was not asked about" if unknown else ""
    return ScoreResult.error(
        f"the scorer returned no result for this sample{others}; return one for every sample_id of the request"
    ).message(sample_id)


def _checked(result: reward_pb2.SampleReward) -> reward_pb2.SampleReward:
    reason = _fault(result)
    if reason:
        _count("malformed")
        return ScoreResult.error(reason).message(result.sample_id)
    if result.status == reward_pb2.REWARD_STATUS_ERROR:
        _count("scorer")
    if result.status == reward_pb2.REWARD_STATUS_OK:
        if len(result.reason) > MAX_REASON:
            result.reason = result.reason[:MAX_REASON]
        return result
    # Without the reward, so that the reward of a sample that was not scored cannot enter any mean.
    return reward_pb2.SampleReward(
        sample_id=result.sample_id, status=result.status, reason=result.reason[:MAX_REASON] or "the scorer gave no reason"
    )


def _fault(result: reward_pb2.SampleReward) -> str:
    if result.status not in STATUS.values():
        return f"the scorer returned the unknown status {result.status}; use ok, invalid or error"
    if result.status != reward_pb2.REWARD_STATUS_OK:
        return ""
    if not math.isfinite(result.reward):
        return f"the scorer's reward is {result.reward}; return `invalid` for a sample that cannot be scored"
    return _component_fault(result)


def _component_fault(result: reward_pb2.SampleReward) -> str:
    if len(result.components) > MAX_COMPONENTS:
        return f"the scorer returned {len(result.components)} components; return at most {MAX_COMPONENTS}"
    components = result.components
    for name in components:
        value = components[name]
        if len(name) > MAX_NAME:
            return f"the scorer's component {name[:MAX_NAME]!r}... has a name of {len(name)} characters; use at most {MAX_NAME}"
        if not math.isfinite(value):
            return f"the scorer's component {name!r} is {value}; leave out components without a value"
    return ""


def _count(cause: Cause, samples: int = 1) -> None:
    PROCESS.count("gradbus.reward.failures", samples, {"gradbus.reward.cause": cause})

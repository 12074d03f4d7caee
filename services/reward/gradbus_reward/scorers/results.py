"""From whatever a scorer gave to exactly one answer for every sample that was asked about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import structlog

from gradbus.graders import Result
from gradbus.graders.result import STATUS
from gradbus.telemetry import PROCESS
from gradbus.v1 import reward_pb2

MAX_REASON = 500
MAX_COMPONENTS = 64
MAX_NAME = 200
_ANSWER_BYTES = 64 << 10
_MOST_BYTES = 64 << 20

_log = structlog.get_logger(__name__)


def answer_bytes(samples: int) -> int:
    """How long the answer about so many samples may be. Small JSON or protobuf becomes many times larger in memory."""
    return min(_MOST_BYTES, (samples + 16) * _ANSWER_BYTES)


Cause = Literal["timeout", "unreachable", "refused", "scorer", "malformed", "missing"]
"""Why samples have an error, for metrics: no answer in time, or none at all; an answer that refuses the call; the scorer's own
`error`; one that is not of the contract; none for the sample."""


def all_failed(asked: Sequence[reward_pb2.ScoreSample], reason: str, cause: Cause) -> list[reward_pb2.SampleReward]:
    """`error` with the same reason for every sample."""
    _count(cause, len(asked))
    return [Result.error(reason[:MAX_REASON]).message(sample.sample_id) for sample in asked]


def answers(asked: Sequence[reward_pb2.ScoreSample], given: Iterable[reward_pb2.SampleReward]) -> list[reward_pb2.SampleReward]:
    """One answer per sample of `asked`, in its order, matched by id.

    What is missing, doubled, not finite or without a known status becomes `error` with a reason; ids nobody
    asked about are logged and left out.
    """
    by_id: dict[str, list[reward_pb2.SampleReward]] = {sample.sample_id: [] for sample in asked}
    foreign: list[str] = []
    for result in given:
        if result.sample_id in by_id:
            by_id[result.sample_id].append(result)
        else:
            foreign.append(result.sample_id)
    if foreign:
        _log.warning("scorer_answered_foreign_ids", count=len(foreign), first=foreign[0][:MAX_REASON])
    return [_answer(sample.sample_id, by_id[sample.sample_id], len(foreign)) for sample in asked]


def _answer(sample_id: str, results: Sequence[reward_pb2.SampleReward], foreign: int) -> reward_pb2.SampleReward:
    if len(results) == 1:
        return _checked(results[0])
    _count("malformed" if results else "missing")
    if results:
        return Result.error(f"the scorer answered {len(results)} times for this sample; answer once").message(sample_id)
    strays = f", and {foreign} result(s) for ids it was not asked about" if foreign else ""
    return Result.error(f"the scorer gave no result for this sample{strays}; answer every sample_id of the request").message(sample_id)


def _checked(result: reward_pb2.SampleReward) -> reward_pb2.SampleReward:
    reason = _fault(result)
    if reason:
        _count("malformed")
        return Result.error(reason).message(result.sample_id)
    if result.status == reward_pb2.REWARD_STATUS_ERROR:
        _count("scorer")
    if result.status == reward_pb2.REWARD_STATUS_OK:
        if len(result.reason) > MAX_REASON:
            result.reason = result.reason[:MAX_REASON]
        return result
    # The reward of a sample that was not judged must not reach any mean by accident.
    return reward_pb2.SampleReward(
        sample_id=result.sample_id, status=result.status, reason=result.reason[:MAX_REASON] or "the scorer gave no reason"
    )


def _fault(result: reward_pb2.SampleReward) -> str:
    if result.status not in STATUS.values():
        return f"the scorer answered with the unknown status {result.status}; use ok, invalid or error"
    if result.status != reward_pb2.REWARD_STATUS_OK:
        return ""
    if not math.isfinite(result.reward):
        return f"the scorer's reward is {result.reward}; answer `invalid` for a sample that cannot be judged"
    return _component_fault(result)


def _component_fault(result: reward_pb2.SampleReward) -> str:
    if len(result.components) > MAX_COMPONENTS:
        return f"the scorer gave {len(result.components)} components; at most {MAX_COMPONENTS}"
    components = result.components
    for name in components:
        value = components[name]
        if len(name) > MAX_NAME:
            return f"the scorer's component {name[:MAX_NAME]!r}... has a name of {len(name)} characters; at most {MAX_NAME}"
        if not math.isfinite(value):
            return f"the scorer's component {name!r} is {value}; leave out what has no value"
    return ""


def _count(cause: Cause, samples: int = 1) -> None:
    PROCESS.count("gradbus.reward.failures", samples, {"gradbus.reward.cause": cause})

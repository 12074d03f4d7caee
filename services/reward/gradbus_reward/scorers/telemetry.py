"""Metrics of the calls of a scorer, and spans of a grader's parts in the traces of the groups."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from gradbus.graders.result import STATUS
from gradbus.spec import RewardSpec
from gradbus.telemetry import PROCESS, TimedSpan, observe, record
from gradbus.v1.reward_pb2 import SampleReward, ScoreSample

_GRADERS: Final = "graders"
_STATUS_NAMES: Final = {number: name for name, number in STATUS.items()}


def scorer_name(reward_json: str) -> str:
    """`host:port` of a user's service; all built-in graders share one name."""
    try:
        service = RewardSpec.model_validate_json(reward_json).service
    except ValidationError:
        return _GRADERS  # an invalid section is refused without calling a scorer
    return urlsplit(service).netloc.rpartition("@")[2] if service else _GRADERS


class CallMetrics:
    """Metrics of the calls of one scorer."""

    def __init__(self, scorer: str) -> None:
        self._scorer = {"gradbus.scorer": scorer}
        for name in STATUS:
            # The series begin at 0, so that a first error is an increase, and a scorer that always fails shows 0 scored samples.
            PROCESS.count("gradbus.reward.samples", 0, {**self._scorer, "gradbus.reward.status": name})

    def add_in_flight(self, change: int) -> None:
        """Counts a call that begins (1) or ends (-1), time in the queue included."""
        PROCESS.count("gradbus.reward.calls", change, self._scorer)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measures the duration of the block, in which the scorer works."""
        began = time.perf_counter()
        try:
            yield
        finally:
            observe("gradbus.reward.duration", time.perf_counter() - began, self._scorer)

    def count_results(self, results: Sequence[SampleReward]) -> None:
        """Counts samples by status."""
        for status, samples in Counter(result.status for result in results).items():
            PROCESS.count("gradbus.reward.samples", samples, {**self._scorer, "gradbus.reward.status": _STATUS_NAMES[status]})


@contextmanager
def grade_spans(parts: Iterable[str], samples: Iterable[ScoreSample]) -> Iterator[None]:
    """Records, for every traced group among `samples`, a span `grade` of each part, as long as the block."""
    groups = {sample.traceparent for sample in samples if sample.traceparent}
    began = time.time_ns()
    error = ""
    try:
        yield
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
        raise
    finally:
        ended = time.time_ns()
        for name in parts if groups else ():
            for group in groups:
                record(TimedSpan("grade", began, ended, group, attributes={"gradbus.grader.part": name}, error=error))

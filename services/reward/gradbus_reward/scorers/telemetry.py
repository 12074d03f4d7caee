"""Calls of a scorer in metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from gradbus.graders.result import STATUS
from gradbus.spec import RewardSpec
from gradbus.telemetry import PROCESS, observe
from gradbus.v1.reward_pb2 import SampleReward

_GRADERS: Final = "graders"
_STATUS: Final = {number: name for name, number in STATUS.items()}


def scorer_name(reward_json: str) -> str:
    """`host:port` of a service of the user's own; the built-in graders share one name."""
    try:
        service = RewardSpec.model_validate_json(reward_json).service
    except ValidationError:
        return _GRADERS  # such a section is refused before anybody is called
    return urlsplit(service).netloc.rpartition("@")[2] if service else _GRADERS


class Calls:
    """Of one scorer."""

    def __init__(self, scorer: str) -> None:
        self._scorer = {"gradbus.scorer": scorer}
        for name in STATUS:
            # So that a first error is seen as one, and a scorer that only fails as one that judges 0 samples.
            PROCESS.count("gradbus.reward.samples", 0, {**self._scorer, "gradbus.reward.status": name})

    def waiting(self, change: int) -> None:
        """A call came or went."""
        PROCESS.count("gradbus.reward.calls", change, self._scorer)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """The scorer has the call inside the block."""
        began = perf_counter()
        try:
            yield
        finally:
            observe("gradbus.reward.duration", perf_counter() - began, self._scorer)

    def answered(self, results: Sequence[SampleReward]) -> None:
        """One count a status, however many samples there are."""
        for status, samples in Counter(result.status for result in results).items():
            PROCESS.count("gradbus.reward.samples", samples, {**self._scorer, "gradbus.reward.status": _STATUS[status]})

"""Answers that are kept: a scorer that is a function of the sample is asked about equal samples once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from gradbus.lru_cache import LruCache
from gradbus.spec import ScorerSpec
from gradbus.telemetry import PROCESS
from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.base import Scorer

_FINAL: Final = {reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID}
_MAX_BYTES: Final = 64 << 20
_ENTRY_BYTES: Final = 200
"""Of an answer beside its message: the key, and Python's objects."""


class KeptAnswers(LruCache[bytes, bytes]):
    """The final answers of all scorers that keep them, up to 64 MiB: messages without a sample id, by what was asked."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__(max_bytes, lambda answer: len(answer) + _ENTRY_BYTES)

    def kept_of(self, spec: ScorerSpec, scorer: Scorer) -> Scorer:
        """The scorer, asked once about equal samples if its section says `cache`."""
        return KeepingScorer(scorer, spec, self) if spec.cache else scorer


class KeepingScorer:
    """Asks its scorer about samples that no earlier call asked about, and about equal ones of one call once."""

    def __init__(self, scorer: Scorer, spec: ScorerSpec, answers: KeptAnswers) -> None:
        """Scorers with equal settings share their answers, whichever run they are of."""
        self._scorer = scorer
        self._answers = answers
        self._id = hashlib.sha256(spec.alone.model_dump_json().encode()).digest()

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample. What failed is not kept."""
        keys = {sample.sample_id: self._key(sample) for sample in request.samples}
        found = {key: answer for key in keys.values() if (answer := self._answers.get(key)) is not None}
        asked: dict[bytes, reward_pb2.ScoreSample] = {}
        for sample in request.samples:
            if (key := keys[sample.sample_id]) not in found:
                asked.setdefault(key, sample)
        PROCESS.count("gradbus.reward.kept", len(request.samples) - len(asked))
        if asked:
            found |= await self._ask(request.run_id, asked, deadline_seconds)
        return [_answered(found[key], sample_id) for sample_id, key in keys.items()]

    async def _ask(self, run_id: str, asked: Mapping[bytes, reward_pb2.ScoreSample], deadline_seconds: float) -> dict[bytes, bytes]:
        rest = reward_pb2.ScoreRequest(run_id=run_id, samples=asked.values())
        by_id = {result.sample_id: result for result in await self._scorer.score(rest, deadline_seconds)}
        given = {key: by_id[sample.sample_id].SerializeToString() for key, sample in asked.items()}
        for key, sample in asked.items():
            if by_id[sample.sample_id].status in _FINAL:
                self._answers.put(key, given[key])
        return given

    async def close(self) -> None:
        """Closes the scorer. The answers stay."""
        await self._scorer.close()

    def _key(self, sample: reward_pb2.ScoreSample) -> bytes:
        asked = json.dumps([sample.prompt, sample.response, sample.item_json, sample.finish_reason]).encode()
        return hashlib.sha256(self._id + asked).digest()


def _answered(answer: bytes, sample_id: str) -> reward_pb2.SampleReward:
    result = reward_pb2.SampleReward.FromString(answer)
    result.sample_id = sample_id
    return result

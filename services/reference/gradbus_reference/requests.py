"""What a call asks of a model of its run, and its answer: log-probabilities, or scores of a reward model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from gradbus.algorithms import MAX_REWARD
from gradbus.errors import ModelError
from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE
from gradbus.graders import ScoreResult
from gradbus.v1.group_pb2 import TeacherRows
from gradbus.v1.reference_service_pb2 import LogProbsResponse, ReferenceSequence, SequenceLogProbs
from gradbus.v1.reward_pb2 import ScoreRequest, ScoreResponse, ScoreSample
from gradbus_kernels.models.packing import TokenSequence
from gradbus_reference.model import ModelCache

_ID_BYTES: Final = np.dtype(ID_DTYPE).itemsize
_MAX_REASON: Final = 1000
Values = NDArray[Any]
"""Of a sequence: log-probabilities of its response `[T]`, with a teacher's rows `[T]` of `row_dtype`, or its score `[1]`."""


@dataclass(frozen=True, slots=True)
class PromptResponse:
    """Token ids of a sample's prompt and response: int32 `[P]` and `[T]`."""

    sample_id: str
    prompt_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Computation:
    """What a loaded model computes for a question."""

    values: Callable[[Sequence[TokenSequence]], Sequence[Values]]
    vocabulary: int
    group_by_group: bool
    """See `RunModel`."""


class Question(Protocol):
    """What calls ask that may be computed together: they are equal."""

    @property
    def run_id(self) -> str:
        """The run whose model is asked."""
        ...

    async def prepared(self, models: ModelCache) -> Computation:
        """Loads the model. Raises the errors of `ModelCache`."""
        ...


@dataclass(frozen=True, slots=True)
class LogProbsQuestion:
    """Log-probabilities under the run's base model, its teacher, or a version of the run."""

    run_id: str
    temperature: float
    of_teacher: bool = False
    top_k: int = 0
    """Most likely tokens of each position; 0: none."""
    version_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ModelError for a temperature that cannot divide logits, and for a version of the teacher."""
        if not (math.isfinite(self.temperature) and self.temperature > 0.0):
            raise ModelError(f"temperature {self.temperature} cannot divide logits; give a number above 0")
        if self.of_teacher and self.version_files:
            raise ModelError("the call names a version and the teacher; ask for one of them")

    async def prepared(self, models: ModelCache) -> Computation:
        """See `Question`."""
        found = await (models.teacher_of(self.run_id) if self.of_teacher else models.policy_of(self.run_id, self.version_files))
        model = found.model
        if self.top_k >= model.vocabulary:
            raise ModelError(f"top_k is {self.top_k} and the model has {model.vocabulary} tokens; ask for fewer")
        compute: Callable[[Sequence[TokenSequence]], Sequence[Values]] = (
            partial(model.rows, temperature=self.temperature, count=self.top_k)
            if self.top_k
            else partial(model.logprobs, temperature=self.temperature)
        )
        return Computation(compute, model.vocabulary, found.group_by_group)


@dataclass(frozen=True, slots=True)
class ScoreQuestion:
    """Scores of the run's reward model, or of a version of a run that trains one."""

    run_id: str
    version_files: tuple[str, ...] = ()

    async def prepared(self, models: ModelCache) -> Computation:
        """See `Question`."""
        found = await models.reward_of(self.run_id, self.version_files)
        return Computation(found.model.scores, found.model.vocabulary, found.group_by_group)


def decoded(samples: Sequence[ReferenceSequence] | Sequence[ScoreSample]) -> list[PromptResponse]:
    """The token ids of a call. Raises ModelError for bytes that are none."""
    return [_decoded(sample) for sample in samples]


def _decoded(sample: ReferenceSequence | ScoreSample) -> PromptResponse:
    for ids in (sample.prompt_ids, sample.token_ids):
        if not ids or len(ids) % _ID_BYTES:
            raise ModelError(f"sample {sample.sample_id!r}: token ids must be little-endian int32, at least one; encode them again")
    return PromptResponse(sample.sample_id, np.frombuffer(sample.prompt_ids, ID_DTYPE), np.frombuffer(sample.token_ids, ID_DTYPE))


def logprobs_response(sequences: Sequence[ReferenceSequence], values: Sequence[Values | None]) -> LogProbsResponse:
    """The answer to a call, in its order, without the sequences that have no values."""
    pairs = zip(sequences, values, strict=True)
    return LogProbsResponse(results=[_message(sequence.sample_id, found) for sequence, found in pairs if found is not None])


def _message(sample_id: str, found: Values) -> SequenceLogProbs:
    if found.dtype.names is None:
        return SequenceLogProbs(sample_id=sample_id, logprobs=found.astype(LOGPROB_DTYPE).tobytes())
    rows = TeacherRows(ids=found["ids"].tobytes(), logprobs=found["logprobs"].tobytes())
    return SequenceLogProbs(sample_id=sample_id, logprobs=found["own"].tobytes(), rows=rows)


def score_response(samples: Sequence[ScoreSample], values: Sequence[Values]) -> ScoreResponse:
    """The answer to a call, in its order. A score that is no reward is an error."""
    pairs = zip(samples, _results(values), strict=True)
    return ScoreResponse(results=[result.message(sample.sample_id) for sample, result in pairs])


def failed_scores(request: ScoreRequest, reason: str, *, permanent: bool) -> ScoreResponse:
    """An error for every sample of the call."""
    result = ScoreResult.error(reason[:_MAX_REASON], permanent=permanent)
    return ScoreResponse(results=[result.message(sample.sample_id) for sample in request.samples])


def _results(values: Sequence[Values]) -> Iterator[ScoreResult]:
    for score in (float(value[0]) for value in values):
        if abs(score) <= MAX_REWARD:  # NaN compares to nothing
            yield ScoreResult(score)
        else:
            reason = (
                f"the reward model's score is {score}, and a reward is a number within ±{MAX_REWARD:g}; take another reward model, "
                "or train this one with a lower trainer.learning_rate or a preference.center above 0"
            )
            yield ScoreResult.error(reason, permanent=True)

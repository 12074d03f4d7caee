"""Batches waiting calls into one computation, which runs in the torch thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gradbus.errors import ModelError
from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE
from gradbus.v1.reference_service_pb2 import LogProbsRequest, LogProbsResponse, ReferenceSequence, SequenceLogProbs
from gradbus_reference.model import ModelCache, RunReference

_ID_BYTES = np.dtype(ID_DTYPE).itemsize


@dataclass(frozen=True, slots=True)
class PromptResponse:
    """Token ids of a prompt and its response: int32 `[P]` and `[T]`."""

    prompt_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _WaitingCall:
    request: LogProbsRequest
    sequences: list[PromptResponse]
    answer: asyncio.Future[LogProbsResponse]


class Batcher:
    """Runs one computation at a time; each takes every call that has arrived meanwhile."""

    def __init__(self, models: ModelCache, torch_thread: Executor) -> None:
        self._models = models
        self._torch_thread = torch_thread
        self._waiting: list[_WaitingCall] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of calls that no computation has taken yet."""
        return len(self._waiting)

    async def logprobs(self, request: LogProbsRequest) -> LogProbsResponse:
        """Log-probabilities in the order of the request.

        Raises ModelError for invalid ids or an invalid temperature, and the errors of loading the model.
        """
        if not (math.isfinite(request.temperature) and request.temperature > 0.0):
            raise ModelError(f"temperature {request.temperature} cannot divide logits; give a number above 0")
        answer: asyncio.Future[LogProbsResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingCall(request, [_decoded(sequence) for sequence in request.sequences], answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute_waiting(), name="log-probs")
        return await answer

    async def _compute_waiting(self) -> None:
        while self._waiting:
            # A cancelled call is past its deadline: nobody reads its answer.
            calls = [call for call in self._waiting if not call.answer.done()]
            self._waiting = []
            calls.sort(key=_batch_key)
            for (run_id, temperature), batch in groupby(calls, key=_batch_key):
                await self._compute(run_id, temperature, list(batch))

    async def _compute(self, run_id: str, temperature: float, calls: Sequence[_WaitingCall]) -> None:
        try:
            reference = await self._models.of(run_id)
            known = [call for call in calls if _ids_are_known(call, reference.model.vocabulary)]
            loop = asyncio.get_running_loop()
            values = iter(await loop.run_in_executor(self._torch_thread, _logprobs, reference, known, temperature))
            for call in known:
                results = [
                    SequenceLogProbs(sample_id=sequence.sample_id, logprobs=next(values).astype(LOGPROB_DTYPE).tobytes())
                    for sequence in call.request.sequences
                ]
                if not call.answer.done():
                    call.answer.set_result(LogProbsResponse(results=results))
        except Exception as error:  # noqa: BLE001 - the message boundary: each caller gets the error, and its server logs or names it
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)


def _ids_are_known(call: _WaitingCall, vocabulary: int) -> bool:
    """Whether each of the call's ids is in the vocabulary. If not, this call fails and the others of its batch do not."""
    for sequence, decoded in zip(call.request.sequences, call.sequences, strict=True):
        ids = np.concatenate([decoded.prompt_ids, decoded.token_ids])
        if ids.min() < 0 or ids.max() >= vocabulary:
            if not call.answer.done():
                call.answer.set_exception(
                    ModelError(
                        f"sample {sequence.sample_id!r} has a token id outside 0..{vocabulary - 1}; give those of the run's own model"
                    )
                )
            return False
    return True


def _logprobs(reference: RunReference, calls: Sequence[_WaitingCall], temperature: float) -> list[NDArray[np.float32]]:
    if not reference.group_by_group:
        return reference.model.logprobs([sequence for call in calls for sequence in call.sequences], temperature)
    results: list[NDArray[np.float32]] = []
    for call in calls:
        pairs = zip(call.request.sequences, call.sequences, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].sample_id.partition(".")[0]):
            results.extend(reference.model.logprobs([sequence for _, sequence in group], temperature))
    return results


def _batch_key(call: _WaitingCall) -> tuple[str, float]:
    return call.request.run_id, call.request.temperature


def _decoded(sequence: ReferenceSequence) -> PromptResponse:
    for ids in (sequence.prompt_ids, sequence.token_ids):
        if not ids or len(ids) % _ID_BYTES:
            raise ModelError(f"sample {sequence.sample_id!r}: token ids must be little-endian int32, at least one; encode them again")
    return PromptResponse(np.frombuffer(sequence.prompt_ids, ID_DTYPE), np.frombuffer(sequence.token_ids, ID_DTYPE))

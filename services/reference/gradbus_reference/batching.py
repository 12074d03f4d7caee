"""Joins the calls that wait into one computation, and keeps torch off the event loop."""

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
from gradbus.v1.reference_service_pb2 import LogProbsRequest, LogProbsResponse, ReferenceSequence, SequenceLogProbs
from gradbus_reference.models import Frozen, Models


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and its response: int32 [P] and [T]."""

    prompt_ids: NDArray[np.int32]
    token_ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Call:
    request: LogProbsRequest
    rows: list[Row]
    answer: asyncio.Future[LogProbsResponse]


class Batcher:
    """One computation at a time; each takes every call that has come meanwhile."""

    def __init__(self, models: Models, torch_thread: Executor) -> None:
        self._models = models
        self._torch_thread = torch_thread
        self._waiting: list[_Call] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Calls that no computation has taken yet."""
        return len(self._waiting)

    async def logprobs(self, request: LogProbsRequest) -> LogProbsResponse:
        """The answer, in the order of the request.

        Raises ModelError for ids that are none or no temperature, and what loading the model raises.
        """
        if not (math.isfinite(request.temperature) and request.temperature > 0.0):
            raise ModelError(f"temperature {request.temperature} cannot divide logits; give a number above 0")
        answer: asyncio.Future[LogProbsResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(request, [_row(sequence) for sequence in request.sequences], answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute_waiting(), name="log-probs")
        return await answer

    async def _compute_waiting(self) -> None:
        while self._waiting:
            # A call that was cancelled has run out of its deadline: nobody reads its answer.
            calls = [call for call in self._waiting if not call.answer.done()]
            self._waiting = []
            calls.sort(key=_batch_key)
            for (run_id, temperature), batch in groupby(calls, key=_batch_key):
                await self._compute(run_id, temperature, list(batch))

    async def _compute(self, run_id: str, temperature: float, calls: Sequence[_Call]) -> None:
        try:
            frozen = await self._models.of(run_id)
            known = [call for call in calls if _is_known(call, frozen.model.vocabulary)]
            loop = asyncio.get_running_loop()
            values = iter(await loop.run_in_executor(self._torch_thread, _logprobs, frozen, known, temperature))
            for call in known:
                results = [
                    SequenceLogProbs(sample_id=sequence.sample_id, logprobs=next(values).astype("<f4").tobytes())
                    for sequence in call.request.sequences
                ]
                if not call.answer.done():
                    call.answer.set_result(LogProbsResponse(results=results))
        except Exception as error:  # noqa: BLE001 - the message boundary: each caller gets it, and its server logs or names it
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)


def _is_known(call: _Call, vocabulary: int) -> bool:
    """Whether the model knows each of the call's ids; if not the call has failed, and its neighbours have not."""
    for sequence, row in zip(call.request.sequences, call.rows, strict=True):
        ids = np.concatenate([row.prompt_ids, row.token_ids])
        if ids.min() < 0 or ids.max() >= vocabulary:
            if not call.answer.done():
                call.answer.set_exception(
                    ModelError(
                        f"sample {sequence.sample_id!r} has a token id outside 0..{vocabulary - 1}; give those of the run's own model"
                    )
                )
            return False
    return True


def _logprobs(frozen: Frozen, calls: Sequence[_Call], temperature: float) -> list[NDArray[np.float32]]:
    if not frozen.group_by_group:
        return frozen.model.logprobs([row for call in calls for row in call.rows], temperature)
    results: list[NDArray[np.float32]] = []
    for call in calls:
        pairs = zip(call.request.sequences, call.rows, strict=True)
        for _, group in groupby(pairs, key=lambda pair: pair[0].sample_id.partition(".")[0]):
            results.extend(frozen.model.logprobs([row for _, row in group], temperature))
    return results


def _batch_key(call: _Call) -> tuple[str, float]:
    return call.request.run_id, call.request.temperature


def _row(sequence: ReferenceSequence) -> Row:
    for ids in (sequence.prompt_ids, sequence.token_ids):
        if not ids or len(ids) % 4:
            raise ModelError(f"sample {sequence.sample_id!r}: token ids must be little-endian int32, at least one; encode them again")
    return Row(np.frombuffer(sequence.prompt_ids, "<i4"), np.frombuffer(sequence.token_ids, "<i4"))

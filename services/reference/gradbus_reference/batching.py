"""Batches waiting calls into one computation, which runs in the torch thread."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradbus.errors import ModelError, OutOfMemoryError, RestartNeededError
from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE
from gradbus.telemetry import get_logger
from gradbus.v1.reference_service_pb2 import LogProbsRequest, LogProbsResponse, ReferenceSequence, SequenceLogProbs
from gradbus_reference.model import ModelCache, RunReference

_log = get_logger(__name__)
_ID_BYTES = np.dtype(ID_DTYPE).itemsize
_LOOK_SECONDS = 1.0
_ABANDONED_SECONDS = 30.0
"""Callers that still want an answer ask again sooner."""
_TURN_TOKENS = 1 << 17
"""Of one run; then other runs that wait have theirs."""
_Result = TypeVar("_Result")


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
    """Runs one computation at a time. The runs that wait take turns; a turn takes a run's calls, up to a bound."""

    def __init__(self, models: ModelCache, torch_thread: Executor) -> None:
        self._models = models
        self._torch_thread = torch_thread
        self._waiting: list[_WaitingCall] = []
        self._task: asyncio.Task[None] | None = None
        self._computing: Sequence[_WaitingCall] = ()
        self.abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with RestartNeededError once the torch thread works for a run that nobody waits for any more."""

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
            waiting, self._waiting = sorted(self._waiting, key=_batch_key), []
            turns = [(key, *_turn(list(batch))) for key, batch in groupby(waiting, key=_batch_key)]
            self._waiting.extend(call for _, _, rest in turns for call in rest)
            for (run_id, temperature), calls, _ in turns:
                await self._compute(run_id, temperature, calls)

    async def _compute(self, run_id: str, temperature: float, calls: Sequence[_WaitingCall]) -> None:
        # A cancelled call is past its deadline: nobody reads its answer.
        self._computing = calls = [call for call in calls if not call.answer.done()]
        if not calls:
            return
        try:
            if not await self._fits(self._answer(run_id, temperature, calls)):
                await self._models.drop_all()  # other runs' models may have the memory
                await self._answer(run_id, temperature, calls)
        except Exception as error:  # noqa: BLE001 - the message boundary: each caller gets the error, and its server logs or names it
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)

    async def _fits(self, work: Awaitable[None]) -> bool:
        """Whether memory sufficed for `work`."""
        try:
            await work
        except OutOfMemoryError as error:
            _log.warning("out_of_memory", error=str(error))
            return False
        return True

    async def _answer(self, run_id: str, temperature: float, calls: Sequence[_WaitingCall]) -> None:
        reference = await self._wanted(run_id, self._models.of(run_id))
        known = [call for call in calls if _ids_are_known(call, reference.model.vocabulary)]
        computed = asyncio.get_running_loop().run_in_executor(self._torch_thread, _logprobs, reference, known, temperature)
        values = iter(await self._wanted(run_id, computed))
        for call in known:
            results = [
                SequenceLogProbs(sample_id=sequence.sample_id, logprobs=next(values).astype(LOGPROB_DTYPE).tobytes())
                for sequence in call.request.sequences
            ]
            if not call.answer.done():
                call.answer.set_result(LogProbsResponse(results=results))

    async def _wanted(self, run_id: str, work: Awaitable[_Result]) -> _Result:
        """The result of `work`. Raises RestartNeededError if it goes on when no call of the run waits: only the process's end ends it."""
        task, clock = asyncio.ensure_future(work), asyncio.get_running_loop().time
        wanted_at = clock()
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            if any(call.request.run_id == run_id and not call.answer.done() for call in (*self._computing, *self._waiting)):
                wanted_at = clock()
            elif clock() - wanted_at > _ABANDONED_SECONDS and not task.done():
                error = RestartNeededError(
                    f"the torch thread works for run {run_id}, for which nobody waits any more; the process ends: start it again"
                )
                if not self.abandoned.done():
                    self.abandoned.set_exception(error)
                raise error
        return task.result()


def _turn(calls: list[_WaitingCall]) -> tuple[list[_WaitingCall], list[_WaitingCall]]:
    """The calls of one turn, at least one, and the rest."""
    tokens = accumulate(sum(len(sequence.prompt_ids) + len(sequence.token_ids) for sequence in call.sequences) for call in calls)
    size = max(1, sum(total <= _TURN_TOKENS for total in tokens))
    return calls[:size], calls[size:]


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

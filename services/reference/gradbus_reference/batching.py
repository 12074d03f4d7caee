"""Batches waiting calls into one computation, which runs in the torch thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TypeVar

import numpy as np

from gradbus import crash_points
from gradbus.errors import ModelError, OutOfMemoryError, RestartNeededError
from gradbus.telemetry import get_logger
from gradbus_reference.model import ModelCache
from gradbus_reference.requests import Computation, PromptResponse, Question, Values

_log = get_logger(__name__)
_LOOK_SECONDS = 1.0
_ABANDONED_SECONDS = 30.0
"""Callers that still want an answer ask again sooner."""
_TURN_TOKENS = 1 << 17
"""Of one run; then other runs that wait have theirs."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _WaitingCall:
    question: Question
    sequences: Sequence[PromptResponse]
    answer: asyncio.Future[Sequence[Values]]


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

    async def values(self, question: Question, sequences: Sequence[PromptResponse]) -> Sequence[Values]:
        """The values of each sequence, in order. Raises ModelError for unknown ids, and the errors of loading the model."""
        answer: asyncio.Future[Sequence[Values]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingCall(question, sequences, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute_waiting(), name="compute")
        return await answer

    async def _compute_waiting(self) -> None:
        while self._waiting:
            batches: dict[Question, list[_WaitingCall]] = {}
            for call in self._waiting:
                batches.setdefault(call.question, []).append(call)
            turns = [(question, *_turn(batch)) for question, batch in batches.items()]
            self._waiting = [call for _, _, rest in turns for call in rest]
            for question, calls, _ in turns:
                await self._compute(question, calls)

    async def _compute(self, question: Question, calls: Sequence[_WaitingCall]) -> None:
        # A cancelled call is past its deadline: nobody reads its answer.
        self._computing = calls = [call for call in calls if not call.answer.done()]
        if not calls:
            return
        try:
            if not await self._fits(self._answer(question, calls)):
                await self._models.drop_all()  # other runs' models may have the memory
                await self._answer(question, calls)
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

    async def _answer(self, question: Question, calls: Sequence[_WaitingCall]) -> None:
        computation = await self._wanted(question.run_id, question.prepared(self._models))
        known = [call for call in calls if _ids_are_known(call, computation.vocabulary)]
        computed = asyncio.get_running_loop().run_in_executor(self._torch_thread, _values, computation, known)
        values = iter(await self._wanted(question.run_id, computed))
        crash_points.reached("mid-answer")
        for call in known:
            found = [next(values) for _ in call.sequences]
            if not call.answer.done():
                call.answer.set_result(found)

    async def _wanted(self, run_id: str, work: Awaitable[_Result]) -> _Result:
        """The result of `work`. Raises RestartNeededError if it goes on when no call of the run waits: only the process's end ends it."""
        task, clock = asyncio.ensure_future(work), asyncio.get_running_loop().time
        wanted_at = clock()
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            if any(call.question.run_id == run_id and not call.answer.done() for call in (*self._computing, *self._waiting)):
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
    for sequence in call.sequences:
        ids = np.concatenate([sequence.prompt_ids, sequence.token_ids])
        if ids.min() < 0 or ids.max() >= vocabulary:
            if not call.answer.done():
                call.answer.set_exception(
                    ModelError(
                        f"sample {sequence.sample_id!r} has a token id outside 0..{vocabulary - 1}; give those of the run's own model"
                    )
                )
            return False
    return True


def _values(computation: Computation, calls: Sequence[_WaitingCall]) -> list[Values]:
    if not computation.group_by_group:
        return list(computation.values([sequence for call in calls for sequence in call.sequences]))
    results: list[Values] = []
    for call in calls:
        for _, group in groupby(call.sequences, key=lambda sequence: sequence.sample_id.partition(".")[0]):
            results.extend(computation.values(list(group)))
    return results

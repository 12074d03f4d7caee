"""Teachers that are SGLang servers of users': asked over HTTP, while the torch thread computes for other runs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradbus.aio.tasks import cancel_and_wait
from gradbus.errors import ModelError, ServiceAwayError
from gradbus.spec import ServedTeacherSpec, TeacherSpec
from gradbus.user_services.sglang import ServedModel, SGLangClient
from gradbus.user_services.sglang_answers import GivenTokens, TokenLogprobs
from gradbus_reference.model import row_dtype
from gradbus_reference.requests import LogProbsQuestion, PromptResponse, Values
from gradbus_reference.settings import ReferenceSettings

_INFO_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 90.0
"""Of all sequences of a call: with those before, less than the conductor waits."""
_LEAST_REST: Final = 2.0**-24
"""Half a step of float32 below 1: a sum of probabilities in float32 says nothing about what is less than this away from 1."""


@dataclass(slots=True)
class _Connection:
    client: SGLangClient
    calls: int = 0
    """In progress."""
    used_at: float = 0.0


class TeacherServers:
    """Asks the servers that specs name. A server with other weights than at the run's submission is an error."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self._settings = settings
        self._connections: dict[str, _Connection] = {}

    @property
    def calls(self) -> int:
        """Number of calls that wait for a server."""
        return sum(connection.calls for connection in self._connections.values())

    async def values(self, teacher: TeacherSpec, question: LogProbsQuestion, sequences: Sequence[PromptResponse]) -> list[Values | None]:
        """The values of each sequence, in order; None for those that the server did not answer in time, or before it went away.

        Raises ModelError for what the server cannot be asked and for other weights, ServiceAwayError if it answered none, and UserCodeError
        for an answer that cannot be used.
        """
        if teacher.url is None or teacher.served is None:
            raise ModelError(f"the spec of {question.run_id} names no teacher's server; submit the run through the gateway")
        if question.temperature != 1.0:
            raise ModelError(f"a teacher's server has log-probabilities at temperature 1, not {question.temperature}; ask for those")
        given = [_given(sequence, question.top_k, teacher.served.vocab_size) for sequence in sequences]
        async with self._client(teacher.url) as client:
            _check_weights(client, teacher.served, await client.served(_INFO_SECONDS))
            return await _answered(client, teacher.served, given) if given else []

    async def close_idle(self) -> None:
        """Closes the connections to servers that nobody has asked for a while; runs until cancelled."""
        seconds = self._settings.idle_seconds
        while True:
            await asyncio.sleep(seconds)
            await self._close({url for url, of in self._connections.items() if not of.calls and time.monotonic() - of.used_at > seconds})

    async def close(self) -> None:
        """Closes all connections."""
        await self._close(set(self._connections))

    async def _close(self, urls: set[str]) -> None:
        for connection in [self._connections.pop(url) for url in urls]:
            await connection.client.close()

    @asynccontextmanager
    async def _client(self, url: str) -> AsyncIterator[SGLangClient]:
        connection = self._connections.get(url)
        if connection is None:
            connection = _Connection(SGLangClient(url, self._settings.addresses, self._settings.keys))
            self._connections[url] = connection
        connection.calls += 1
        try:
            yield connection.client
        finally:
            connection.calls -= 1
            connection.used_at = time.monotonic()


def _given(sequence: PromptResponse, top_k: int, vocabulary: int) -> GivenTokens:
    prompt, response = sequence.prompt_ids.tolist(), sequence.token_ids.tolist()
    if not all(0 <= token < vocabulary for token in (*prompt, *response)):
        message = f"sample {sequence.sample_id!r} has a token id outside 0..{vocabulary - 1}; give those of the run's own model"
        raise ModelError(message)
    return GivenTokens(prompt, response, vocabulary, top_k)


async def _answered(client: SGLangClient, served: ServedTeacherSpec, given: Sequence[GivenTokens]) -> list[Values | None]:
    """What came in time. A slow server would never end a large call if its answers were lost with it."""
    tasks = [asyncio.create_task(_answer(client, served, one)) for one in given]
    try:
        await asyncio.wait(tasks, timeout=_ANSWER_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await cancel_and_wait(*tasks)
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    if unusable := [error for error in errors if not isinstance(error, ServiceAwayError)]:
        raise unusable[0]
    found = [None if task.cancelled() or task.exception() is not None else task.result() for task in tasks]
    if any(values is not None for values in found):
        return found
    late = f"{client.name} answered none of {len(given)} sequences within {_ANSWER_SECONDS:g} s; make it faster, or give it less other work"
    raise errors[0] if errors else ServiceAwayError(late)


async def _answer(client: SGLangClient, served: ServedTeacherSpec, given: GivenTokens) -> Values:
    said = await client.logprobs(given, _ANSWER_SECONDS)
    _check_weights(client, served, ServedModel(served.model_path, said.weight_version))
    return await asyncio.to_thread(_packed, said, given.top_k, served.vocab_size)


def _check_weights(client: SGLangClient, expected: ServedTeacherSpec, found: ServedModel) -> None:
    if (found.path, found.weight_version) != (expected.model_path, expected.weight_version):
        raise ModelError(
            f"{client.name} had weights {expected.weight_version!r} of {expected.model_path!r} when the run was submitted, and has "
            f"{found.weight_version!r} of {found.path!r}; serve those again, or submit the run anew"
        )


def _packed(said: TokenLogprobs, top_k: int, vocabulary: int) -> Values:
    """What the service answers for a sequence. The mass of all other tokens is what the most likely ones leave of 1."""
    if not top_k:
        return np.array(said.own, np.float32)
    ids = np.array(said.ids)
    if ids.max() >= vocabulary:
        raise ModelError(f"the teacher finds token {ids.max()} likely, and the policy has {vocabulary} tokens; serve one of its size")
    rest = [max(1.0 - math.fsum(map(math.exp, row)), _LEAST_REST) for row in said.most]
    rows = np.empty(len(said.own), row_dtype(top_k))
    rows["own"], rows["ids"] = said.own, ids
    rows["logprobs"] = np.column_stack([np.array(said.most), np.log(rest)])
    return rows

"""A reward server of another framework, asked as that framework asks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from gradbus.errors import ScorerError
from gradbus.graders import ScoreResult
from gradbus.user_services.addresses import AddressPolicy, shown
from gradbus.user_services.http import HttpClient, HttpRequest
from gradbus.v1 import reward_pb2
from gradbus_reward.protocols.base import PeerCall, RewardProtocol, rows
from gradbus_reward.scorers.http import CALL_FAILURES, failed_call, parsed_json, response_bounds
from gradbus_reward.scorers.results import complete_results, failed_results

_Made = TypeVar("_Made")
_AT_ONCE: Final = 64
"""Calls of one run in progress, as slime has it."""


class PeerScorer:
    """Makes the calls of a protocol side by side. One that fails is an `error` of its own samples alone."""

    def __init__(self, protocol: RewardProtocol, url: str, policy: AddressPolicy, headers: Mapping[str, str]) -> None:
        """`headers`: what the server gets with each call, such as the operator's key."""
        self._name = f"the scorer at {shown(url)}"
        self._url = url
        self._protocol = protocol
        self._headers = headers
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scorer")
        self._client = HttpClient(self._name, policy, self._thread)
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample."""
        end = asyncio.get_running_loop().time() + deadline_seconds
        samples = list(request.samples)
        try:
            calls = await self._in_thread(lambda: list(self._protocol.calls(samples, rows())))
        except ValueError as error:
            return failed_results(samples, f"a row cannot be sent ({error}); fix the dataset", "grader")
        answered = await asyncio.gather(*(self._answered(call, end, deadline_seconds) for call in calls))
        return [result for results in answered for result in results]  # calls take the samples in their order

    async def close(self) -> None:
        """Closes the connections and the thread."""
        await self._client.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _answered(self, call: PeerCall, end: float, seconds: float) -> Sequence[reward_pb2.SampleReward]:
        try:
            async with asyncio.timeout_at(end), self._places:
                results = await self._asked(call, seconds)
        except CALL_FAILURES as error:
            return failed_call(call.samples, self._name, seconds, error)
        return complete_results(call.samples, [one.message(sample.sample_id) for sample, one in zip(call.samples, results, strict=True)])

    async def _asked(self, call: PeerCall, seconds: float) -> Sequence[ScoreResult]:
        content = await self._in_thread(lambda: json.dumps(call.body).encode())
        request = HttpRequest("POST", self._url, content, self._headers)
        body = await self._client.call(request, response_bounds(len(call.samples)), seconds)
        return await self._in_thread(lambda: self._protocol.results(call, _document(body, len(call.samples))))

    async def _in_thread(self, work: Callable[[], _Made]) -> _Made:
        """JSON in a thread of its own, so that the samples of one run hold up no other."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _document(body: bytes, samples: int) -> Any:
    """Raises ScorerError."""
    try:
        return parsed_json(body, samples)
    except ValueError as error:
        raise ScorerError(f"the server's response is not JSON ({error}); check that it speaks this protocol") from error

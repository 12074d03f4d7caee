"""A user's scorer over HTTP: one POST of JSON with all samples of the request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final

from gradbus.errors import ScorerError, UserCodeError
from gradbus.graders.result import STATUS, ScoreResult
from gradbus.sandbox.bounds import MAX_REASON
from gradbus.user_services.addresses import AddressPolicy, shown
from gradbus.user_services.http import FAILURES, BodyBounds, HttpClient, HttpRequest
from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.results import check_number, complete_results, failed_results, max_pieces, max_response_bytes, max_values

_SEPARATORS: Final = (b"[", b"{", b",")
"""JSON has at most as many values as these, and one."""
CALL_FAILURES: Final = (TimeoutError, UserCodeError, *FAILURES)


class HttpScorer:
    """Posts `{run_id, samples, deadline_ms}` and reads `{results}`. Follows no redirects and ignores the environment's proxies."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self._name = f"the scorer at {shown(url)}"
        self._url = url
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scorer")
        self._client = HttpClient(self._name, policy, self._thread)

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample. A call that fails is an `error` for all of them, a malformed result for its sample only."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_seconds):
                # JSON in a thread of its own, so that the samples of one run hold up no other.
                content = await loop.run_in_executor(self._thread, _body, request, deadline_seconds)
                body = await self._client.call(
                    HttpRequest("POST", self._url, content), response_bounds(len(request.samples)), deadline_seconds
                )
                results = await loop.run_in_executor(self._thread, _results, body, len(request.samples))
        except CALL_FAILURES as error:
            return failed_call(request.samples, self._name, deadline_seconds, error)
        return complete_results(request.samples, results)

    async def close(self) -> None:
        """Closes the connections and the thread."""
        await self._client.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


def failed_call(
    samples: Sequence[reward_pb2.ScoreSample], name: str, seconds: float, error: BaseException
) -> list[reward_pb2.SampleReward]:
    """`error` for the samples of a call that raised one of `CALL_FAILURES`: no answer in time, none at all, or a refusal."""
    match error:
        case TimeoutError():
            return failed_results(samples, f"{name} did not respond within {seconds:.1f} s; make it faster", "timeout")
        case UserCodeError():
            return failed_results(samples, str(error), "refused")
    return failed_results(samples, f"{name} failed: {error or type(error).__name__}; check that it runs", "unreachable")


def response_bounds(samples: int) -> BodyBounds:
    """Of the response to a request with so many samples."""
    return BodyBounds(max_response_bytes(samples), max_pieces(samples), "send one short result per sample")


def _body(request: reward_pb2.ScoreRequest, deadline_seconds: float) -> bytes:
    row = cache(_checked_row)  # the samples of a group have the same row
    samples = ", ".join(_sample(sample, row) for sample in request.samples)
    return f'{{"run_id": {json.dumps(request.run_id)}, "samples": [{samples}], "deadline_ms": {int(deadline_seconds * 1000)}}}'.encode()


def _sample(sample: reward_pb2.ScoreSample, row: Callable[[str], str]) -> str:
    """A sample as JSON, with its row as it was sent: to write a megabyte of values anew would hold up every other thread."""
    try:
        item = row(sample.item_json or "{}")
    except ValueError as error:
        raise ScorerError(f"the row of sample {sample.sample_id} is not JSON ({error}); fix the dataset") from error
    fields = {
        "sample_id": sample.sample_id,
        "group_id": sample.group_id,
        "prompt": sample.prompt,
        "response": sample.response,
        "finish_reason": sample.finish_reason,
        "weight_version": sample.weight_version,
    }
    return f'{json.dumps(fields)[:-1]}, "item": {item}}}'


def _checked_row(text: str) -> str:
    """The row, if it is JSON. Raises ValueError."""
    json.loads(text)
    return text


def parsed_json(body: bytes, samples: int) -> Any:
    """A response to a request with so many samples. Raises ScorerError for too many values, and ValueError if it is not JSON."""
    if sum(map(body.count, _SEPARATORS)) > max_values(samples):
        raise ScorerError(f"the scorer's response has more than {max_values(samples)} values; send one short result per sample")
    try:
        # Integers as floats: one with thousands of digits then spoils its sample, not the whole response.
        return json.loads(body, parse_int=float)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _results(body: bytes, samples: int) -> list[reward_pb2.SampleReward]:
    try:
        document = parsed_json(body, samples)
    except ValueError as error:
        raise ScorerError(f"the scorer's response is not JSON ({error}); send an object with `results`") from error
    results = document.get("results") if isinstance(document, Mapping) else None
    if not isinstance(results, list):
        raise ScorerError("the scorer's response has no list `results`; send an object with one result per sample")
    check_number(len(results), samples)
    return list(_read(results))


def _read(results: Sequence[object]) -> Iterator[reward_pb2.SampleReward]:
    """The results with a sample id; a malformed result becomes an `error` with its reason."""
    for entry in results:
        if isinstance(entry, Mapping) and isinstance(sample_id := entry.get("sample_id"), str):
            yield _result(entry).message(sample_id)


def _result(entry: Mapping[str, object]) -> ScoreResult:
    given = entry.get("reason")
    reason = given[:MAX_REASON] if isinstance(given, str) else ""
    match entry.get("status"):
        case "ok":
            return _ok_result(entry.get("reward"), entry.get("components") or {})
        case "invalid":
            return ScoreResult.invalid(reason)
        case "error":
            return ScoreResult.error(reason, permanent=entry.get("permanent") is True)
        case status:
            return ScoreResult.error(f"the scorer returned the unknown status {_shown(status)}; use {', '.join(STATUS)}", permanent=True)


def _ok_result(reward: object, components: object) -> ScoreResult:
    if not isinstance(reward, float):
        return ScoreResult.error(f"the scorer's reward {_shown(reward)} is not a number; return a number, or `invalid`", permanent=True)
    if not isinstance(components, Mapping) or not all(isinstance(value, float) for value in components.values()):
        return ScoreResult.error("the scorer's components are not an object of numbers; leave out other values", permanent=True)
    return ScoreResult(reward, components)


def _shown(value: object) -> str:
    """A short form of a JSON value, however large it is."""
    return repr(value[:80]) if isinstance(value, str) else repr(value) if isinstance(value, bool | float | None) else type(value).__name__

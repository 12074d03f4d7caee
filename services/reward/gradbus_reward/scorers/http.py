"""A user's scorer over HTTP: one POST of JSON with all samples of the request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

import httpcore2
import httpx2
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from gradbus.errors import ScorerError
from gradbus.graders.result import STATUS, ScoreResult
from gradbus.telemetry import Attributes, span
from gradbus.v1 import reward_pb2
from gradbus_reward.sandbox.bounds import MAX_REASON
from gradbus_reward.scorers.addresses import DEFAULT_PORTS, AddressPolicy, Endpoint, IPAddress, shown
from gradbus_reward.scorers.bounded_network import BoundedNetwork, BoundedStream
from gradbus_reward.scorers.first_connection import FirstConnection
from gradbus_reward.scorers.results import check_number, complete_results, failed_results, max_pieces, max_response_bytes, max_values

_OK: Final = 200
_FAILURES: Final = (httpcore2.NetworkError, httpcore2.ProtocolError, httpx2.InvalidURL, UnicodeError)
_CONNECTIONS: Final = 100
_SEPARATORS: Final = (b"[", b"{", b",")
"""JSON has at most as many values as these, and one."""
_IDLE_SECONDS: Final = 5.0
"""How long a connection is kept for the next request."""


class HttpScorer:
    """Posts `{run_id, samples, deadline_ms}` and reads `{results}`. Follows no redirects and ignores the environment's proxies."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self._url = url
        self._name = f"the scorer at {shown(url)}"
        self._policy = policy
        self._first_connection = FirstConnection()
        # Not a client with cookies, redirects and settings from the environment, all of which would be the server's to use.
        self._connections = httpcore2.AsyncConnectionPool(
            max_connections=_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS, network_backend=BoundedNetwork()
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scorer")

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One result per sample. A call that fails is an `error` for all of them, a malformed result for its sample only."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_seconds):
                # JSON in a thread of its own, so that the samples of one run hold up no other.
                content = await loop.run_in_executor(self._thread, _body, request, deadline_seconds)
                body = await self._post(content, len(request.samples), deadline_seconds)
                results = await loop.run_in_executor(self._thread, _results, body, len(request.samples))
        except TimeoutError:
            reason = f"{self._name} did not respond within {deadline_seconds:.1f} s; make it faster"
            return failed_results(request.samples, reason, "timeout")
        except _FAILURES as error:
            reason = f"{self._name} failed: {error or type(error).__name__}; check that it runs"
            return failed_results(request.samples, reason, "unreachable")
        except ScorerError as error:
            return failed_results(request.samples, str(error), "refused")
        return complete_results(request.samples, results)

    async def close(self) -> None:
        """Closes the connections and the thread."""
        await self._connections.aclose()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _post(self, content: bytes, samples: int, deadline_seconds: float) -> bytes:
        """The body of the response about so many samples, from the first of the checked addresses that accepts the connection."""
        endpoint = await self._policy.resolve(self._url, self._thread)
        await self._first_connection.wait(endpoint, deadline_seconds)
        attributes: Attributes = {"http.request.method": "POST", "server.address": endpoint.host, "server.port": endpoint.port}
        with span("POST", SpanKind.CLIENT, attributes=attributes):
            for address in endpoint.addresses[:-1]:
                with contextlib.suppress(httpcore2.ConnectError):
                    return await self._post_to(address, endpoint, content, samples)
            return await self._post_to(endpoint.addresses[-1], endpoint, content, samples)

    async def _post_to(self, address: IPAddress, endpoint: Endpoint, content: bytes, samples: int) -> bytes:
        url = httpx2.URL(self._url)
        pinned = httpcore2.URL(scheme=url.scheme, host=str(address), port=endpoint.port, target=url.raw_path)
        name = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        host = name if DEFAULT_PORTS[url.scheme] == endpoint.port else f"{name}:{endpoint.port}"
        headers = {"host": host, "content-type": "application/json", "accept": "*/*", "accept-encoding": "identity"}
        headers["content-length"] = str(len(content))
        propagate.inject(headers)
        # TLS verifies the name, although the connection goes to the address.
        extensions = {} if _is_address(endpoint.host) else {"sni_hostname": endpoint.host}
        encoded = [(field.encode(), value.encode()) for field, value in headers.items()]
        async with self._connections.stream("POST", pinned, headers=encoded, content=content, extensions=extensions) as response:
            if response.status != _OK:
                raise ScorerError(f"{self._name} responded with {response.status}; it must respond with 200, redirects are not followed")
            return await _limited_body(response, self._name, samples)


async def _limited_body(response: httpcore2.Response, name: str, samples: int) -> bytes:
    most = max_response_bytes(samples)
    stream: BoundedStream = response.extensions["network_stream"]
    stream.allow_body(most)
    body, pieces = bytearray(), 0
    # As it comes, because a small compressed body could become a large one.
    async for piece in response.aiter_stream():
        body += piece
        pieces += 1
        if len(body) > most:
            raise ScorerError(f"{name} sent more than {most >> 20} MiB; send one short result per sample")
        if pieces > max_pieces(samples):
            raise ScorerError(f"{name} sent its response in more than {max_pieces(samples)} chunks; send it whole")
    return bytes(body)


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


def _results(body: bytes, samples: int) -> list[reward_pb2.SampleReward]:
    if sum(map(body.count, _SEPARATORS)) > max_values(samples):
        raise ScorerError(f"the scorer's response has more than {max_values(samples)} values; send one short result per sample")
    try:
        # Integers as floats: one with thousands of digits then spoils its sample, not the whole response.
        document = json.loads(body, parse_int=float)
    except (ValueError, RecursionError) as error:
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


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

"""The user's own scorer over HTTP: one POST of JSON for every waiting sample."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence

import httpx2
from opentelemetry import propagate
from opentelemetry.trace import SpanKind

from gradbus.errors import ScorerError
from gradbus.graders.result import STATUS, Result
from gradbus.telemetry import Attributes, span
from gradbus.v1 import reward_pb2
from gradbus_reward.scorers.addresses import DEFAULT_PORTS, AddressPolicy, Endpoint, IPAddress
from gradbus_reward.scorers.results import MAX_REASON, all_failed, answer_bytes, answers


class HttpScorer:
    """Posts `{run_id, samples, deadline_ms}` and reads `{results}`. Follows no redirect and no proxy of the environment."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self._url = url
        self._policy = policy
        self._client = httpx2.AsyncClient(follow_redirects=False, trust_env=False, timeout=None)

    async def score(self, request: reward_pb2.ScoreRequest, deadline_seconds: float) -> Sequence[reward_pb2.SampleReward]:
        """One answer per sample; a call that fails is `error` for all, a result that is malformed for its sample alone."""
        try:
            async with asyncio.timeout(deadline_seconds):
                body = await self._posted(_body(request, deadline_seconds), answer_bytes(len(request.samples)))
            results = await asyncio.to_thread(_results, body)
        except TimeoutError:
            reason = f"the scorer at {self._url} gave no whole answer in {deadline_seconds:.1f} s; make it faster"
            return all_failed(request.samples, reason, "timeout")
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            reason = f"the scorer at {self._url} failed: {error or type(error).__name__}; check that it runs"
            return all_failed(request.samples, reason, "unreachable")
        except ScorerError as error:
            return all_failed(request.samples, str(error), "refused")
        return answers(request.samples, results)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _posted(self, content: bytes, most: int) -> bytes:
        """The body of the answer, of `most` bytes, from the first of the checked addresses that takes the connection."""
        endpoint = await self._policy.resolve(self._url)
        facts: Attributes = {"http.request.method": "POST", "server.address": endpoint.host, "server.port": endpoint.port}
        with span("POST", SpanKind.CLIENT, attributes=facts):
            for address in endpoint.addresses[:-1]:
                with contextlib.suppress(httpx2.ConnectError):
                    return await self._posted_to(address, endpoint, content, most)
            return await self._posted_to(endpoint.addresses[-1], endpoint, content, most)

    async def _posted_to(self, address: IPAddress, endpoint: Endpoint, content: bytes, most: int) -> bytes:
        url = httpx2.URL(self._url)
        name = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        host = name if DEFAULT_PORTS[url.scheme] == endpoint.port else f"{name}:{endpoint.port}"
        headers = {"host": host, "content-type": "application/json", "accept-encoding": "identity"}
        propagate.inject(headers)
        # TLS still proves the name, though the address is what is called.
        extensions = {} if _is_address(endpoint.host) else {"sni_hostname": endpoint.host}
        pinned = url.copy_with(host=str(address))
        async with self._client.stream("POST", pinned, content=content, headers=headers, extensions=extensions) as response:
            if response.status_code != httpx2.codes.OK:
                raise ScorerError(
                    f"the scorer at {self._url} answered {response.status_code}; it must answer 200, redirects are not followed"
                )
            return await _bounded(response, self._url, most)


async def _bounded(response: httpx2.Response, url: str, most: int) -> bytes:
    body = bytearray()
    # Raw: a small compressed body must not become a large one here.
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > most:
            raise ScorerError(f"the scorer at {url} answered more than {most >> 20} MiB; answer one short result per sample")
    return bytes(body)


def _body(request: reward_pb2.ScoreRequest, deadline_seconds: float) -> bytes:
    samples = [
        {
            "sample_id": sample.sample_id,
            "group_id": sample.group_id,
            "prompt": sample.prompt,
            "response": sample.response,
            "item": _item(sample),
            "finish_reason": sample.finish_reason,
            "weight_version": sample.weight_version,
        }
        for sample in request.samples
    ]
    return json.dumps({"run_id": request.run_id, "samples": samples, "deadline_ms": int(deadline_seconds * 1000)}).encode()


def _item(sample: reward_pb2.ScoreSample) -> object:
    try:
        return json.loads(sample.item_json or "{}")
    except ValueError as error:
        raise ScorerError(f"the row of sample {sample.sample_id} is not JSON ({error}); mend the dataset") from error


def _results(body: bytes) -> list[reward_pb2.SampleReward]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ScorerError(f"the scorer's answer is not JSON ({error}); answer an object with `results`") from error
    results = document.get("results") if isinstance(document, Mapping) else None
    if not isinstance(results, list):
        raise ScorerError("the scorer's answer has no list `results`; answer an object with one result per sample")
    return list(_read(results))


def _read(results: Sequence[object]) -> Iterator[reward_pb2.SampleReward]:
    """The results that name a sample; one that is malformed says so for its sample alone."""
    for entry in results:
        if isinstance(entry, Mapping) and isinstance(sample_id := entry.get("sample_id"), str):
            yield _result(entry).message(sample_id)


def _result(entry: Mapping[str, object]) -> Result:
    reason = str(entry.get("reason") or "")[:MAX_REASON]
    match entry.get("status"):
        case "ok":
            return _judged(entry.get("reward"), entry.get("components") or {})
        case "invalid":
            return Result.invalid(reason)
        case "error":
            return Result.error(reason)
        case status:
            return Result.error(f"the scorer answered with the unknown status {str(status)[:80]!r}; use {', '.join(STATUS)}")


def _judged(reward: object, components: object) -> Result:
    if not _is_number(reward):
        return Result.error(f"the scorer's reward {str(reward)[:80]!r} is not a number; answer a number, or `invalid`")
    if not isinstance(components, Mapping) or not all(_is_number(value) for value in components.values()):
        return Result.error("the scorer's components are not an object of numbers; leave out what is not a number")
    try:
        return Result(float(str(reward)), {str(name): float(value) for name, value in components.items()})
    except OverflowError:
        return Result.error("the scorer answered a number beyond a double; scale it")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

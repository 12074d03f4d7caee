"""The routes of an SGLang server that the engine uses. Every call has a deadline and ends in an answer or an EngineError.

Of the routes for weights only the update from disk is used: the routes that take tensors unpickle the request.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import httpx2

from gradbus.errors import EngineError
from gradbus_rollout.engines.server.exit_cause import out_of_memory

_UNKNOWN_ADAPTER: Final = "has never been loaded"
_KEEPALIVE_SECONDS: Final = 2.0
"""Shorter than the server's 5 s, so no request goes out on a connection that the server is closing."""
_SPARE_CONNECTIONS: Final = 8
_QUICK_SECONDS: Final = 10.0
_HEALTH_SECONDS: Final = 30.0
"""Longer than the 20 s after which the server itself answers that it is not healthy. Its description takes as long just after its start."""
_SHOWN: Final = 400

MemoryTag = Literal["kv_cache", "weights"]
CheckAction = Literal["snapshot", "reset_tensors", "compare"]


class ServerApi:
    """Client of one server, with its key."""

    def __init__(self, url: str, key: str, slots: int, load_seconds: float) -> None:
        self.url = url
        self._load_seconds = load_seconds
        limits = httpx2.Limits(max_connections=slots + _SPARE_CONNECTIONS, keepalive_expiry=_KEEPALIVE_SECONDS)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.AsyncClient(
            base_url=url, headers=headers, limits=limits, timeout=None, trust_env=False, follow_redirects=False
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def healthy(self) -> bool:
        """Whether the server generates a token."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                return (await self._client.get("/health")).status_code == httpx2.codes.OK
        except (httpx2.HTTPError, TimeoutError):
            return False

    async def info(self) -> Mapping[str, Any]:
        """The server's version, dtype and device, among others."""
        return await self._call("GET", "/server_info", None, _HEALTH_SECONDS)

    async def requires_key(self) -> bool:
        """Whether a control route refuses a request without the key."""
        async with httpx2.AsyncClient(base_url=self.url, trust_env=False, timeout=_QUICK_SECONDS) as stranger:
            try:
                response = await stranger.post("/abort_request", json={"rid": "none"})
            except httpx2.HTTPError as error:
                raise self._dead("/abort_request", error) from error
            return response.status_code in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}

    async def generate(self, body: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """Samples one request to its end, or until it is aborted."""
        return await self._call("POST", "/generate", body, seconds)

    async def abort(self, request_id: str) -> None:
        """Aborts one request, if the server has it."""
        await self._call("POST", "/abort_request", {"rid": request_id}, _QUICK_SECONDS)

    async def abort_all(self) -> None:
        """Aborts every request; each returns the tokens that it has."""
        await self._call("POST", "/abort_request", {"abort_all": True}, _QUICK_SECONDS)

    async def pause(self, mode: Literal["retract", "in_place"]) -> None:
        """Stops decoding between two tokens."""
        await self._call("POST", "/pause_generation", {"mode": mode}, _QUICK_SECONDS)

    async def resume(self) -> None:
        """Resumes decoding."""
        await self._call("POST", "/continue_generation", {"torch_empty_cache": False}, _QUICK_SECONDS)

    async def release_memory(self, tag: MemoryTag) -> None:
        """Frees the server's memory for weights or cache; the server must be at rest. The driver may count it as free only later."""
        await self._call("POST", "/release_memory_occupation", {"tags": [tag]}, self._load_seconds)

    async def resume_memory(self, tag: MemoryTag) -> None:
        """Takes the memory again. Its content is undefined."""
        await self._call("POST", "/resume_memory_occupation", {"tags": [tag]}, self._load_seconds)

    async def flush(self) -> bool:
        """Empties the prefix cache; False while the server has requests that are not paused."""
        try:
            await self._call("POST", "/flush_cache", None, _QUICK_SECONDS)
        except EngineError as error:
            if error.state != "refused":
                raise
            return False
        return True

    async def update_from_disk(self, folder: str, label: str | None = None) -> None:
        """Reads the folder's tensors, without a flush: a server that cannot flush, because a request has just ended, would exit."""
        body = {"model_path": folder, "flush_cache": False, "weight_version": label}
        await self._call("POST", "/update_weights_from_disk", body, self._load_seconds)

    async def load_adapter(self, name: str, folder: str) -> bool:
        """Loads the adapters in `folder` under `name`. Whether the server then lists that name with that folder."""
        answer = await self._call("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": folder}, self._load_seconds)
        return answer.get("success") is True and (answer.get("loaded_adapters") or {}).get(name) == folder

    async def unload_adapter(self, name: str) -> None:
        """Unloads adapters, after the requests that use them."""
        await self._call("POST", "/unload_lora_adapter", {"lora_name": name}, self._load_seconds)

    async def prompt_logprobs(self, token_ids: Sequence[int], adapter: str | None) -> tuple[float, ...]:
        """Log-probabilities of all tokens but the first, at temperature 1, from the base model or with adapters."""
        body = {"input_ids": list(token_ids), "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0}
        answer = await self._call("POST", "/generate", body | {"lora_path": adapter, "extra_key": uuid.uuid4().hex}, self._load_seconds)
        return tuple(float(logprob) for logprob, *_ in answer["meta_info"]["input_token_logprobs"][1:])

    async def check_weights(self, action: CheckAction) -> None:
        """Runs one action of the weight checker. `compare` raises EngineError unless every tensor equals the snapshot."""
        await self._call("POST", "/weights_checker", {"action": action}, self._load_seconds)

    async def label(self, label: str) -> None:
        """Gives the weights a label; samples in flight get a new span."""
        await self._call("POST", "/update_weight_version", {"new_version": label, "abort_all_requests": False}, _QUICK_SECONDS)

    async def _call(self, method: str, route: str, body: Mapping[str, Any] | None, seconds: float) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                response = await self._client.request(method, route, json=body)
        except TimeoutError:
            raise EngineError("hung", f"{self.url}{route} gave no answer in {seconds:.0f} s; the server is started again") from None
        except httpx2.HTTPError as error:
            raise self._dead(route, error) from error
        if response.status_code != httpx2.codes.OK:
            raise self._refused(route, response)
        if not response.content:
            return {}
        try:
            answer = json.loads(response.content)
        except ValueError:
            answer = response.text
        return answer if isinstance(answer, dict) else {"answer": answer}

    def _dead(self, route: str, error: Exception) -> EngineError:
        return EngineError("dead", f"{self.url}{route} does not answer ({type(error).__name__}: {error}); see the server's log")

    def _refused(self, route: str, response: httpx2.Response) -> EngineError:
        text = response.text[:_SHOWN]
        if out_of_memory(response.text):
            return EngineError("out_of_memory", f"{route} answered {response.status_code}: {text}; lower slots or --mem-fraction-static")
        if _UNKNOWN_ADAPTER in response.text:
            return EngineError("wrong_version", f"the server has lost the adapters that a sample names ({text}); they are loaded again")
        return EngineError("refused", f"{route} answered {response.status_code}: {text}; see the server's log")

"""An SGLang server that a user runs, as a teacher: what it serves, its tokenizer, and log-probabilities of given tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gradbus.errors import BusyServiceError, ServiceAwayError, UserCodeError
from gradbus.strict_json import parse_json
from gradbus.user_services.addresses import AddressPolicy, HostUnknownError, shown
from gradbus.user_services.http import FAILURES, BodyBounds, HttpClient, HttpRequest, HttpResponse
from gradbus.user_services.keys import ServiceKeys
from gradbus.user_services.sglang_answers import (
    Document,
    GivenTokens,
    TokenLogprobs,
    UnusableAnswerError,
    ids_of_texts,
    most_tokens,
    texts,
    texts_of_ids,
    token_logprobs,
)

_OK: Final = 200
_TOLD: Final = range(400, 502)
"""Statuses whose body says why."""
_KEYLESS: Final = frozenset({401, 403})
_AT_ONCE: Final = 64
"""Sequences that one server is asked about, which batches them."""
_SCORED: Final[Mapping[str, Any]] = {"sampling_params": {"max_new_tokens": 0, "temperature": 1.0}, "return_logprob": True}
_LEAST_BODY: Final = 1 << 20
_ENTRY_BYTES: Final = 64
"""Of a log-probability and its token, as JSON."""
_PIECE_BYTES: Final = 2 << 10
_SHOWN: Final = 300
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says of itself."""

    path: str
    weight_version: str
    """The server's name of the weights."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One request below the server's URL: a GET, or a POST of `body`."""

    path: str
    body: Mapping[str, Any] | None = None
    size: int = _LEAST_BODY
    """Of the answer, at most."""


class SGLangClient:
    """Calls one server.

    Each call raises ServiceAwayError while the server cannot be reached, gives no answer in time or refuses work for now, and
    UserCodeError for an address that is refused and an answer that cannot be used.
    """

    def __init__(self, url: str, policy: AddressPolicy, keys: ServiceKeys) -> None:
        self.name = f"the SGLang server at {shown(url)}"
        """In messages."""
        self._url = url.rstrip("/")
        self._headers = keys.headers(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="teacher")
        self._client = HttpClient(self.name, policy, self._thread)
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def served(self, seconds: float) -> ServedModel:
        """The model and the name of its weights."""
        return ServedModel(*await self._answer(_Call("/model_info"), lambda said: texts(said, "model_path", "weight_version"), seconds))

    async def most_tokens(self, seconds: float) -> int | None:
        """Tokens of the longest request; None if the server does not say."""
        return await self._answer(_Call("/server_info"), most_tokens, seconds)

    async def tokenized(self, given: Sequence[str], seconds: float) -> list[tuple[int, ...]]:
        """The ids of each text, without those that begin or end a text."""
        size = _LEAST_BODY + _ENTRY_BYTES * sum(map(len, given))
        call = _Call("/tokenize", {"prompt": list(given), "add_special_tokens": False}, size)
        return await self._answer(call, lambda said: ids_of_texts(said, len(given)), seconds)

    async def token_texts(self, ids: Sequence[int], seconds: float) -> list[str]:
        """The text of each token."""
        call = _Call("/detokenize", {"tokens": [[token] for token in ids], "skip_special_tokens": False}, _LEAST_BODY * 4)
        return await self._answer(call, lambda said: texts_of_ids(said, len(ids)), seconds)

    async def check_token(self, token: int, seconds: float) -> None:
        """Raises UserCodeError with the server's words if it has no such token. As an input such a token would end the server."""
        body = {**_SCORED, "input_ids": [0], "token_ids_logprob": [token]}
        await self._answer(_Call("/generate", body), lambda said: said, seconds)

    async def logprobs(self, given: GivenTokens, seconds: float) -> TokenLogprobs:
        """Log-probabilities of the given tokens after the prompt, and of the most likely ones at their positions.

        Few sequences are asked about at a time, in the order of the calls; `seconds` do not include the wait for a place.
        """
        ids = [*given.prompt_ids, *given.token_ids]
        body = {**_SCORED, "input_ids": ids, "logprob_start_len": len(given.prompt_ids) - 1, "top_logprobs_num": given.top_k}
        size = _LEAST_BODY + _ENTRY_BYTES * len(given.token_ids) * (1 + given.top_k)
        async with self._places:
            return await self._answer(_Call("/generate", body, size), lambda said: token_logprobs(said, given), seconds)

    async def close(self) -> None:
        """Closes the connections and the thread."""
        await self._client.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, call: _Call, read: Callable[[Document], _Read], seconds: float) -> _Read:
        """What `read` finds in the answer. JSON is read in a thread, so that a long answer holds up no other run."""
        loop, body = asyncio.get_running_loop(), call.body
        bounds = BodyBounds(call.size, call.size // _PIECE_BYTES, "check that it is an SGLang server")
        try:
            async with asyncio.timeout(seconds):
                content = b"" if body is None else await loop.run_in_executor(self._thread, lambda: json.dumps(body).encode())
                request = HttpRequest("GET" if body is None else "POST", f"{self._url}{call.path}", content, self._headers)
                response = await self._client.exchange(request, bounds, seconds, (_OK, *_TOLD))
                return await loop.run_in_executor(self._thread, lambda: read(self._document(call.path, response)))
        except TimeoutError as error:
            message = f"{self.name} did not answer {call.path} within {seconds:.0f} s; make it faster, or give it fewer other requests"
            raise ServiceAwayError(message) from error
        except (HostUnknownError, BusyServiceError) as error:
            raise ServiceAwayError(str(error)) from error
        except FAILURES as error:
            raise ServiceAwayError(f"{self.name} failed at {call.path}: {error or type(error).__name__}; check that it runs") from error
        except ValueError as error:
            raise UserCodeError(f"{self.name} gave an answer to {call.path} that cannot be used: {error}") from error

    def _document(self, path: str, response: HttpResponse) -> Document:
        """Raises UserCodeError for another status, and ValueError for what is no JSON object."""
        if response.status in _KEYLESS:
            raise UserCodeError(f"{self.name} wants a key at {path}; ask the operator to set it in GRADBUS_TEACHER_KEYS")
        if response.status != _OK:
            said = response.body[:_SHOWN].decode(errors="replace")
            raise UserCodeError(f"{self.name} answered {path} with {response.status}: {said}; see the server's log")
        try:
            found = parse_json(response.body)
        except UnicodeDecodeError as error:
            raise UnusableAnswerError(f"it is not UTF-8 ({error})") from error
        if not isinstance(found, dict):
            raise UnusableAnswerError("it is no JSON object; check that it is an SGLang server")
        return found

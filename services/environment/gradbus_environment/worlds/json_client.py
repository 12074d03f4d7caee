"""JSON over HTTP to one environment of the user's: bounded, and decoded in a thread of its own, so that one run holds up no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from httpcore2 import ConnectError

from gradbus.errors import BusyServiceError, UserCodeError
from gradbus.strict_json import parse_json
from gradbus.user_services.addresses import AddressPolicy, shown
from gradbus.user_services.http import CONNECTIONS, FAILURES, BodyBounds, HttpClient, HttpRequest, HttpResponse
from gradbus_environment.answers import AnswerError
from gradbus_environment.contract import Answer, Document

_BOUNDS: Final = BodyBounds(8 << 20, 4096, "shorten its messages")
MAX_VALUES: Final = 65_536
_GZIP: Final = b"\x1f\x8b"
_REFUSED: Final = frozenset({429, 503})

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """One request below the environment's URL."""

    method: str
    path: str
    """With its slash; empty: the URL itself."""
    body: Any = None
    """A JSON value; None: no body."""
    headers: Mapping[str, str] = field(default_factory=dict)
    accepted: Container[int] = frozenset({200})
    """Statuses of the response."""


class JsonClient:
    """Calls what is below one URL."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self._url = url
        self.name = f"the environment at {shown(url)}"
        """In messages."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="environment")
        self._client = HttpClient(self.name, policy, self._thread)
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def call(self, request: JsonRequest, read: Callable[[HttpResponse], _Read], seconds: float) -> _Read:
        """What `read` finds in the response. Raises UserCodeError, and whatever `read` raises."""
        loop = asyncio.get_running_loop()
        try:
            # The wait for a connection is not the environment's.
            async with self._places, asyncio.timeout(seconds):
                content = b"" if request.body is None else await loop.run_in_executor(self._thread, _encoded, request.body)
                sent = HttpRequest(request.method, f"{self._url}{request.path}", content, request.headers)
                response = await self._client.exchange(sent, _BOUNDS, seconds, request.accepted)
                return await loop.run_in_executor(self._thread, read, response)
        except TimeoutError as error:
            raise UserCodeError(f"{self.name} did not answer {request.path} within {seconds:.1f} s; make it faster") from error
        except FAILURES as error:
            raise UserCodeError(f"{self.name} failed at {request.path}: {error or type(error).__name__}; check that it runs") from error

    async def close(self) -> None:
        """Closes the connections and the thread."""
        await self._client.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


def json_object(response: HttpResponse) -> Document:
    """The object that a body is. Raises AnswerError."""
    if response.body.startswith(_GZIP):
        raise AnswerError("its body is compressed, which was not asked for; send it as it is")
    try:
        said = parse_json(response.body, MAX_VALUES)
    except ValueError as error:
        raise AnswerError(f"its body is not JSON: {error}") from error
    if not isinstance(said, dict):
        raise AnswerError("its body is no JSON object")
    return said


def was_never_asked(error: Exception) -> bool:
    """Whether the server was not found, or refused the request unread, which may then be asked again whatever it does.

    A proxy's 502 and 504 say nothing of that: the server may have done what was asked.
    """
    if isinstance(error, BusyServiceError):
        return error.status in _REFUSED
    return isinstance(error.__cause__, ConnectError)


def failed_call(error: UserCodeError) -> Answer:
    """The answer to a call that failed. A server that is not found or refuses work for now is waited for."""
    is_away = isinstance(error, BusyServiceError) or was_never_asked(error)
    return Answer.away(str(error)) if is_away else Answer.error(str(error))


def _encoded(asked: Any) -> bytes:
    return json.dumps(asked, ensure_ascii=False).encode("utf-8", "replace")

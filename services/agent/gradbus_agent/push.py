"""Posts episodes to agents that run behind an address of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from httpcore2 import NetworkError, RemoteProtocolError

from gradbus.errors import BusyServiceError, UserCodeError
from gradbus.user_services.addresses import AddressPolicy, shown
from gradbus.user_services.http import CONNECTIONS, FAILURES, BodyBounds, HttpClient, HttpRequest
from gradbus_agent.contract import Document, Reply

_BOUNDS: Final = BodyBounds(1 << 16, 64, "answer with an empty object")
_POST_SECONDS: Final = 30.0


class Agents:
    """The agents behind addresses, each with a client of its own."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._agents: dict[str, _Agent] = {}

    async def post(self, url: str, offer: Document) -> Reply | None:
        """Posts an episode. None: the agent took it; else an error, which may pass."""
        if url not in self._agents:
            self._agents[url] = _Agent(url, self._policy)
        return await self._agents[url].post(offer)

    async def keep(self, urls: Container[str]) -> None:
        """Closes the clients of all other URLs: no episode is played there any more."""
        gone = [self._agents.pop(url) for url in list(self._agents) if url not in urls]
        await asyncio.gather(*(agent.close() for agent in gone))


class _Agent:
    """The agent at one URL. It has a thread of its own: a name that is found slowly holds up no other run's."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self._url = url
        self._name = f"the agent at {shown(url)}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agent")
        self._client = HttpClient(self._name, policy, self._thread)
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def post(self, offer: Document) -> Reply | None:
        content = json.dumps(offer, ensure_ascii=False).encode("utf-8", "replace")
        try:
            async with self._places, asyncio.timeout(_POST_SECONDS):
                await self._client.call(HttpRequest("POST", self._url, content), _BOUNDS, _POST_SECONDS)
        except TimeoutError:
            return Reply.error(
                f"{self._name} did not answer within {_POST_SECONDS:.0f} s; let it answer at once, and play the episode afterwards"
            )
        except FAILURES as error:
            said = f"{self._name} failed: {error or type(error).__name__}; check that it runs"
            return Reply.away(said) if _was_cut(error) else Reply.error(said)
        except BusyServiceError as error:
            return Reply.away(str(error))
        except UserCodeError as error:
            return Reply.error(str(error))
        return None

    async def close(self) -> None:
        """Closes the connections and the thread."""
        await self._client.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _was_cut(error: Exception) -> bool:
    """Whether there was no connection, or it ended before a response, as when the agent restarts: it may get the episode once more."""
    return isinstance(error, NetworkError) or (isinstance(error, RemoteProtocolError) and "disconnected" in str(error))

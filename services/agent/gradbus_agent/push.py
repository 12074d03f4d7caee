"""Posts episodes to agents that run behind an address of their own."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from httpcore2 import ConnectError

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
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="agents")
        self._clients: dict[str, tuple[HttpClient, asyncio.Semaphore]] = {}

    async def post(self, url: str, offer: Document) -> Reply | None:
        """Posts an episode. None: the agent took it; else an error, which may pass."""
        name = f"the agent at {shown(url)}"
        if url not in self._clients:
            self._clients[url] = HttpClient(name, self._policy, self._threads), asyncio.Semaphore(CONNECTIONS)
        client, places = self._clients[url]
        content = json.dumps(offer, ensure_ascii=False).encode("utf-8", "replace")
        try:
            async with places, asyncio.timeout(_POST_SECONDS):
                await client.call(HttpRequest("POST", url, content), _BOUNDS, _POST_SECONDS)
        except TimeoutError:
            return Reply.error(
                f"{name} did not answer within {_POST_SECONDS:.0f} s; let it answer at once, and play the episode afterwards"
            )
        except FAILURES as error:
            said = f"{name} failed: {error or type(error).__name__}; check that it runs"
            return Reply.away(said) if isinstance(error, ConnectError) else Reply.error(said)
        except BusyServiceError as error:
            return Reply.away(str(error))
        except UserCodeError as error:
            return Reply.error(str(error))
        return None

    async def end(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(client.close() for client, _ in self._clients.values()))
        self._threads.shutdown(wait=False, cancel_futures=True)

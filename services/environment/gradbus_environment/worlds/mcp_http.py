"""MCP over streamable HTTP: a POST for each message, and a session by a header."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Final

from gradbus.errors import UserCodeError
from gradbus.user_services.addresses import AddressPolicy
from gradbus_environment.contract import Document
from gradbus_environment.worlds.json_client import JsonClient, JsonRequest
from gradbus_environment.worlds.mcp_messages import SESSION, response_to

_ANSWERED: Final = frozenset({200, 202, 400, 404})
_CLOSED: Final = frozenset({200, 202, 204, 404, 405})
_ACCEPT: Final = {"accept": "application/json, text/event-stream"}
_CLOSE_SECONDS: Final = 5.0


class McpOverHttp:
    """A server behind an address."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self._client = JsonClient(url, policy)
        self.name = self._client.name

    async def connect(self) -> _Connection:
        """A session that begins with the first message."""
        return _Connection(self._client)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()


class _Connection:
    def __init__(self, client: JsonClient) -> None:
        self._client = client
        self._headers = dict(_ACCEPT)

    def agree(self, version: str) -> None:
        """From here on messages say the version."""
        self._headers["mcp-protocol-version"] = version

    async def ask(self, asked: Document, seconds: float) -> Document:
        """The response to a request. Raises UserCodeError and AnswerError."""
        read = partial(response_to, asked["id"])
        name, said = await self._client.call(JsonRequest("POST", "", asked, self._headers, _ANSWERED), read, seconds)
        if name:
            self._headers[SESSION] = name
        return said

    async def tell(self, notice: Document, seconds: float) -> None:
        """Sends what has no response."""
        await self._client.call(JsonRequest("POST", "", notice, self._headers, _ANSWERED), lambda _: None, seconds)

    async def end(self) -> None:
        """Ends the session; a failure harms nobody here."""
        if SESSION in self._headers:
            with contextlib.suppress(UserCodeError):
                await self._client.call(JsonRequest("DELETE", "", None, self._headers, _CLOSED), lambda _: None, _CLOSE_SECONDS)

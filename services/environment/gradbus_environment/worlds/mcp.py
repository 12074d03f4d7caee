"""An MCP server behind an address, over streamable HTTP: one session an episode. It has tools and gives no rewards.

Calls carry no id by which a server could know a repeated one, so a session with a call that failed is not used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from gradbus.errors import UserCodeError
from gradbus.user_services.addresses import AddressPolicy, AddressRefusedError
from gradbus_environment.answers import AnswerError, ok_answer, step_messages
from gradbus_environment.contract import Answer, Description, Document, EnvironmentRefusedError, Move, Session, canonical
from gradbus_environment.sandbox.world import MAX_TEXT, cut, error_text
from gradbus_environment.worlds.calls import arguments_of, executed_calls
from gradbus_environment.worlds.http import described_tools
from gradbus_environment.worlds.json_client import JsonClient, JsonRequest, failed_call, was_never_asked
from gradbus_environment.worlds.mcp_messages import SESSION, response_to, result_text

MCP: Final = ("mcp+http://", "mcp+https://")
_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, newest first."""
_ANSWERED: Final = frozenset({200, 202, 400, 404})
_CLOSED: Final = frozenset({200, 202, 204, 404, 405})
_ACCEPT: Final = {"accept": "application/json, text/event-stream"}
_INVALID_PARAMS: Final = -32602
_MAX_PAGES: Final = 128
_MAX_NAME: Final = 1024
_CLOSE_SECONDS: Final = 5.0


class _RefusedCallError(UserCodeError):
    """The server knows no such tool, or its arguments do not fit: the policy may have caused it."""


@dataclass(slots=True)
class _McpSession:
    headers: dict[str, str] = field(default_factory=lambda: dict(_ACCEPT))
    seconds: float = 0.0
    """Of a request."""
    requests: int = 0
    """So many had an answer."""
    is_lost: bool = False
    """A call failed, and whether the world went on is unknown."""


class McpWorld:
    """Speaks `initialize`, `tools/list` and `tools/call`. Offers the server nothing: no sampling, no elicitation, no roots."""

    def __init__(self, service: str, policy: AddressPolicy) -> None:
        self._client = JsonClient(service.removeprefix("mcp+"), policy)
        self._name = self._client.name
        self._sessions: dict[str, _McpSession] = {}

    async def describe(self, seconds: float) -> Description:
        """All pages of `tools/list`."""
        session = _McpSession(seconds=seconds)
        try:
            async with asyncio.timeout(seconds):
                name = await self._begin(session)
                tools = described_tools([_tool(one) for one in await self._listed(session)])
        except TimeoutError as error:
            raise UserCodeError(f"{self._name} did not describe itself within {seconds:.1f} s; make it faster") from error
        except (AnswerError, AddressRefusedError) as error:
            raise EnvironmentRefusedError(f"{self._name} described itself wrongly: {error}") from error
        finally:
            await self._end(session)
        whole = canonical([name, [[one.name, one.description, one.parameters_json] for one in tools]])
        return Description(name, hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest(), determinism="recorded", tools=tools)

    async def open(self, session: Session, seconds: float) -> Answer:
        """Begins a session of the server. The conversation is the row's prompt."""
        self._sessions[session.id] = connection = _McpSession(seconds=seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._begin(connection)
            return Answer()
        except (UserCodeError, AnswerError, TimeoutError) as error:
            return self._failed(error, seconds)

    async def step(self, session: Session, move: Move, seconds: float) -> Answer:
        """One `tools/call` for each call. A turn without calls ends the episode."""
        connection = self._sessions.get(session.id)
        if connection is None or connection.is_lost:
            return Answer.error(f"what became of the last call at {self._name} is unknown; open the episode again")
        results = []
        before, connection.seconds = connection.requests, seconds
        connection.is_lost = True  # until there is an answer, also for a caller who gives up
        try:
            async with asyncio.timeout(seconds):
                for call in executed_calls(move):
                    said = await self._called(connection, call["name"], arguments_of(call))
                    results.append({"role": "tool", "call_id": call["call_id"], "content": cut(said, MAX_TEXT)})
            answer = ok_answer(step_messages(results, move), None, {}, done=False)
        except (UserCodeError, AnswerError, TimeoutError) as error:
            connection.is_lost = connection.requests > before or not was_never_asked(error)
            return self._failed(error, seconds)
        connection.is_lost = False
        return answer

    async def close(self, session: Session) -> None:
        """Ends the server's session; a failure harms nobody here."""
        connection = self._sessions.pop(session.id, None)
        if connection is not None:
            await self._end(connection)

    async def end(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def _begin(self, session: _McpSession) -> str:
        """Greets the server. Returns its name."""
        asked = {"protocolVersion": _VERSIONS[0], "capabilities": {}, "clientInfo": {"name": "gradbus", "version": "0"}}
        match await self._ask(session, "initialize", asked):
            case {"protocolVersion": str(version), "capabilities": {"tools": dict()}, "serverInfo": {"name": str(name)}}:
                pass
            case _:
                raise AnswerError("it has no tools, or did not answer initialize as an MCP server does")
        if version not in _VERSIONS:
            raise AnswerError(f"it speaks version {version[:40]!r} of the protocol; known: {', '.join(_VERSIONS)}")
        session.headers["mcp-protocol-version"] = version
        notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self._client.call(JsonRequest("POST", "", notice, session.headers, _ANSWERED), lambda _: None, session.seconds)
        return name[:_MAX_NAME] or "MCP"

    async def _listed(self, session: _McpSession) -> list[Any]:
        tools: list[Any] = []
        cursor: dict[str, str] = {}
        for _ in range(_MAX_PAGES):
            match await self._ask(session, "tools/list", cursor):
                case {"tools": [*page], "nextCursor": str(after)} if after:
                    cursor = {"cursor": after}
                case {"tools": [*page]}:
                    return tools + page
                case _:
                    raise AnswerError("tools/list gave no list of tools")
            tools += page
        raise AnswerError(f"tools/list has more than {_MAX_PAGES} pages")

    async def _called(self, session: _McpSession, name: str, arguments: Document | str) -> str:
        """What the tool said, or an error that the policy may have caused."""
        if isinstance(arguments, str):
            return arguments
        try:
            said = await self._ask(session, "tools/call", {"name": name, "arguments": arguments})
        except _RefusedCallError as error:
            return error_text("invalid_arguments", str(error))
        return result_text(said)

    async def _ask(self, session: _McpSession, method: str, params: Document) -> Document:
        """The result of a request. Raises _RefusedCallError, UserCodeError and AnswerError."""
        number = session.requests + 1
        asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        read = partial(response_to, number)
        name, said = await self._client.call(JsonRequest("POST", "", asked, session.headers, _ANSWERED), read, session.seconds)
        session.requests = number
        if name:
            session.headers[SESSION] = name
        match said:
            case {"error": {"code": int(code), "message": str(message)}}:
                if code == _INVALID_PARAMS:
                    raise _RefusedCallError(message[:400])
                raise UserCodeError(f"{self._name} failed at {method}: {code} {message[:400]}")
            case {"result": dict(result)}:
                return result
        raise AnswerError(f"its answer to {method} is neither a result nor an error")

    async def _end(self, session: _McpSession) -> None:
        if SESSION in session.headers:
            with contextlib.suppress(UserCodeError):
                await self._client.call(JsonRequest("DELETE", "", None, session.headers, _CLOSED), lambda _: None, _CLOSE_SECONDS)

    def _failed(self, error: Exception, seconds: float) -> Answer:
        if isinstance(error, TimeoutError):
            return Answer.error(f"{self._name} did not answer within {seconds:.1f} s; make it faster")
        return failed_call(error) if isinstance(error, UserCodeError) else Answer.error(f"{self._name} answered wrongly: {error}")


def _tool(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return {"name": given.get("name"), "description": given.get("description") or given.get("name"), "parameters": given.get("inputSchema")}

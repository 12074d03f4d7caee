"""A server of the Model Context Protocol, by whichever transport: one session an episode. It has tools and gives no rewards.

Calls carry no id by which a server could know a repeated one, so a session with a call that failed is not used again.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gradbus.errors import UserCodeError
from gradbus.user_services.addresses import AddressRefusedError
from gradbus_environment.answers import AnswerError, ok_answer, step_messages
from gradbus_environment.contract import Answer, Description, Document, EnvironmentRefusedError, Move, Session, canonical
from gradbus_environment.sandbox.world import MAX_TEXT, cut, error_text
from gradbus_environment.worlds.calls import arguments_of, executed_calls
from gradbus_environment.worlds.http import described_tools
from gradbus_environment.worlds.json_client import failed_call, was_never_asked
from gradbus_environment.worlds.mcp_messages import result_text

MCP_HTTP: Final = ("mcp+http://", "mcp+https://")
MCP_STDIO: Final = "mcp+stdio://"
_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, newest first."""
_INVALID_PARAMS: Final = -32602
_MAX_PAGES: Final = 128
_MAX_NAME: Final = 1024


class Connection(Protocol):
    """One session of a server. What it raises is UserCodeError and AnswerError."""

    def agree(self, version: str) -> None:
        """The version of the protocol that both speak."""
        ...

    async def ask(self, asked: Document, seconds: float) -> Document:
        """The response to a request of JSON-RPC."""
        ...

    async def tell(self, notice: Document, seconds: float) -> None:
        """Sends a notification."""
        ...

    async def end(self) -> None:
        """Ends the session."""
        ...


class Server(Protocol):
    """A server by one transport."""

    @property
    def name(self) -> str:
        """In messages."""
        ...

    async def connect(self) -> Connection:
        """A new session. Raises UserCodeError."""
        ...

    async def close(self) -> None:
        """Frees all that it holds."""
        ...


class _RefusedCallError(UserCodeError):
    """The server knows no such tool, or its arguments do not fit: the policy may have caused it."""


@dataclass(slots=True)
class _McpSession:
    connection: Connection
    seconds: float
    """Of a request."""
    requests: int = 0
    """So many had an answer."""
    is_lost: bool = False
    """A call failed, and whether the world went on is unknown."""


class McpWorld:
    """Speaks `initialize`, `tools/list` and `tools/call`. Offers the server nothing: no sampling, no elicitation, no roots."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._name = server.name
        self._sessions: dict[str, _McpSession] = {}

    async def describe(self, seconds: float) -> Description:
        """All pages of `tools/list`."""
        session: _McpSession | None = None
        try:
            async with asyncio.timeout(seconds):
                session = _McpSession(await self._server.connect(), seconds)
                name = await self._begin(session)
                tools = described_tools([_tool(one) for one in await self._listed(session)])
        except TimeoutError as error:
            raise UserCodeError(f"{self._name} did not describe itself within {seconds:.1f} s; make it faster") from error
        except (AnswerError, AddressRefusedError) as error:
            raise EnvironmentRefusedError(f"{self._name} described itself wrongly: {error}") from error
        finally:
            if session is not None:
                await session.connection.end()
        whole = canonical([name, [[one.name, one.description, one.parameters_json] for one in tools]])
        return Description(name, hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest(), determinism="recorded", tools=tools)

    async def open(self, session: Session, seconds: float) -> Answer:
        """Begins a session of the server. The conversation is the row's prompt."""
        try:
            async with asyncio.timeout(seconds):
                self._sessions[session.id] = connection = _McpSession(await self._server.connect(), seconds)
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
            await connection.connection.end()

    async def end(self) -> None:
        """Closes the connections."""
        await self._server.close()

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
        session.connection.agree(version)
        await session.connection.tell({"jsonrpc": "2.0", "method": "notifications/initialized"}, session.seconds)
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
        said = await session.connection.ask({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, session.seconds)
        session.requests = number
        match said:
            case {"error": {"code": int(code), "message": str(message)}}:
                if code == _INVALID_PARAMS:
                    raise _RefusedCallError(message[:400])
                raise UserCodeError(f"{self._name} failed at {method}: {code} {message[:400]}")
            case {"result": dict(result)}:
                return result
        raise AnswerError(f"its answer to {method} is neither a result nor an error")

    def _failed(self, error: Exception, seconds: float) -> Answer:
        if isinstance(error, TimeoutError):
            return Answer.error(f"{self._name} did not answer within {seconds:.1f} s; make it faster")
        return failed_call(error) if isinstance(error, UserCodeError) else Answer.error(f"{self._name} answered wrongly: {error}")


def _tool(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    return {"name": given.get("name"), "description": given.get("description") or given.get("name"), "parameters": given.get("inputSchema")}

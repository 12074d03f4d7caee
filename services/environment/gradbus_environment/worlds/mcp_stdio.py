"""MCP over standard input and output: a command that the operator named, in a sandbox, one process a session."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from gradbus.errors import BusyServiceError, UserCodeError
from gradbus.sandbox.budget import ProcessBudget
from gradbus.sandbox.commands.run import ServedCommand, end_process, start_server
from gradbus.strict_json import parse_json
from gradbus_environment.answers import AnswerError
from gradbus_environment.contract import Document
from gradbus_environment.worlds.json_client import MAX_VALUES
from gradbus_environment.worlds.sandboxes import Sandboxes

_LINE_BYTES: Final = 8 << 20
_TOLD_BYTES: Final = 400
"""The end of what a server wrote to its standard error, told when it has ended."""
_TOLD_SECONDS: Final = 0.5
_UNAVAILABLE: Final = 503
_METHOD_NOT_FOUND: Final = -32601


@dataclass(frozen=True, slots=True)
class McpCommand:
    """A server that submitters may name."""

    command: tuple[str, ...]
    """The program by its whole path, and its arguments."""
    paths: tuple[str, ...] = ()
    """What it may read and execute beside the system's programs; not below `/work` and `/tmp`, which are its own."""
    memory_mib: int = 512


class McpOverStdio:
    """Starts a process for each session, as long as the budget has room."""

    def __init__(self, name: str, command: McpCommand, sandboxes: Sandboxes, budget: ProcessBudget) -> None:
        self.name = f"the MCP server {name}"
        self._command = command
        self._sandboxes = sandboxes
        self._budget = budget
        self._connections: set[_Connection] = set()

    async def connect(self) -> _Connection:
        """Raises BusyServiceError if there is no room for another process, UserCodeError if it cannot be started."""
        if not self._budget.has_room:
            raise BusyServiceError(f"there is no room for another process of {self.name}; raise GRADBUS_MAX_MCP_PROCESSES", _UNAVAILABLE)
        await self._budget.acquire(self)
        try:
            level, command = await self._sandboxes.level("namespaces"), self._command
            process = await start_server(ServedCommand(command.command, command.paths, command.memory_mib), level)
        except BaseException:
            self._budget.release()
            raise
        connection = _Connection(self, process)
        self._connections.add(connection)
        return connection

    async def shed(self) -> bool:
        """A session's state is in its process alone, so none makes room."""
        return False

    async def close(self) -> None:
        """Ends all processes."""
        await asyncio.gather(*(connection.end() for connection in list(self._connections)))

    def forget(self, connection: _Connection) -> None:
        """The connection has ended its process."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._budget.release()


class _StandardError:
    """Reads what a server writes there, so that its pipe never fills, and keeps the end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._kept = b""
        self._reading = asyncio.create_task(self._read(process.stderr))

    async def end(self) -> str:
        """The last lines, once the process has ended."""
        await asyncio.wait([self._reading], timeout=_TOLD_SECONDS)
        return self._kept.decode("utf-8", "replace").strip()

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (part := await stream.read(1 << 16)):
            self._kept = (self._kept + part)[-_TOLD_BYTES:]


class _Connection:
    def __init__(self, server: McpOverStdio, process: asyncio.subprocess.Process) -> None:
        self._server = server
        self._process = process
        self._errors = _StandardError(process)

    def agree(self, version: str) -> None:
        """Messages do not say the version."""

    async def ask(self, asked: Document, seconds: float) -> Document:
        """The response to a request. Raises UserCodeError and AnswerError."""
        try:
            async with asyncio.timeout(seconds):
                await self._send(asked)
                while True:
                    said = await self._receive()
                    if "method" in said:
                        await self._refuse(said)
                    elif said.get("id") == asked["id"] or (said.get("id") is None and "error" in said):
                        return said
        except TimeoutError as error:
            raise UserCodeError(f"{self._server.name} did not answer {asked['method']} within {seconds:.1f} s; make it faster") from error

    async def tell(self, notice: Document, seconds: float) -> None:
        """Sends what has no response."""
        async with asyncio.timeout(seconds):
            await self._send(notice)

    async def end(self) -> None:
        """Ends the process, with all that it started."""
        try:
            await end_process(self._process)
        finally:  # also if the caller gives up: then it was killed
            self._server.forget(self)

    async def _has_ended(self, said: str = "") -> UserCodeError:
        told = "".join(f" ({part})" for part in (said.strip(), await self._errors.end()) if part)
        return UserCodeError(f"{self._server.name} has ended{told}; see that its command runs by itself, without a network")

    async def _refuse(self, asked: Document) -> None:
        """Nothing is offered to a server; a ping is answered."""
        if "id" in asked:
            error = {"error": {"code": _METHOD_NOT_FOUND, "message": "not offered"}}
            await self._send({"jsonrpc": "2.0", "id": asked["id"], **({"result": {}} if asked["method"] == "ping" else error)})

    async def _send(self, message: Document) -> None:
        stream = self._process.stdin
        if stream is None:
            raise UserCodeError(f"{self._server.name} has no pipe; open the episode again")
        try:
            stream.write(json.dumps(message).encode() + b"\n")
            await stream.drain()
        except ConnectionError as error:
            raise await self._has_ended() from error

    async def _receive(self) -> dict[str, Any]:
        stream = self._process.stdout
        if stream is None:
            raise UserCodeError(f"{self._server.name} has no pipe; open the episode again")
        try:
            line = await stream.readuntil(b"\n")
            said = await asyncio.to_thread(parse_json, line, MAX_VALUES)
        except asyncio.IncompleteReadError as error:
            raise await self._has_ended(error.partial[:200].decode("utf-8", "replace")) from error
        except asyncio.LimitOverrunError as error:
            raise AnswerError(f"it sent a message of more than {_LINE_BYTES >> 20} MiB") from error
        except ValueError as error:
            raise AnswerError(f"its message is not JSON: {error}") from error
        if not isinstance(said, dict):
            raise AnswerError("its message is no JSON object")
        if reason := said.get("refused") or said.get("failed"):  # by what makes the sandbox
            raise UserCodeError(f"{self._server.name} cannot be started: {str(reason)[:400]}")
        return said

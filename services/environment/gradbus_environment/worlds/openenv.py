"""An environment of OpenEnv (openenv-core) behind an address: one WebSocket an episode.

A server of MCP tools has its tools; any other has one tool `act`, whose arguments are its action. Steps carry no id, so a connection that
failed cannot be used again: the episode begins anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from gradbus.errors import UserCodeError
from gradbus.strict_json import parse_json
from gradbus.user_services.addresses import AddressPolicy, AddressRefusedError, shown
from gradbus.user_services.http import FAILURES, BodyBounds, HttpClient, HttpRequest
from gradbus.user_services.websocket import WebSocket
from gradbus.v1.episode_pb2 import Message
from gradbus_environment.answers import AnswerError, checked_reward, ok_answer, opening_messages, step_messages
from gradbus_environment.contract import Answer, Description, Document, EnvironmentRefusedError, Move, Session, canonical
from gradbus_environment.sandbox.world import MAX_TEXT, cut, error_text
from gradbus_environment.worlds.calls import arguments_of, executed_calls
from gradbus_environment.worlds.faults import Faults
from gradbus_environment.worlds.http import described_tools
from gradbus_environment.worlds.json_client import MAX_VALUES

OPENENV: Final = ("openenv+ws://", "openenv+wss://")
_BOUNDS: Final = BodyBounds(8 << 20, 4096, "shorten its schema")
_SEED_BITS: Final = 0x7FFFFFFF
"""Many environments give the seed to numpy, which takes 32 bits."""
_FOR_POLICY: Final = {"execution_error": "tool_failed", "invalid_args": "invalid_arguments", "tool_not_found": "unknown_tool"}
"""Errors of MCP tools that the policy may have caused, by the kind that it is told."""


class _RefusedActionError(UserCodeError):
    """The server refused an action as malformed: the policy may have caused it."""


class _FaultError(UserCodeError):
    """The environment's code raised."""


class _FullError(UserCodeError):
    """The server has as many sessions as it may, and began none."""


_KINDS: Final = {"VALIDATION_ERROR": _RefusedActionError, "EXECUTION_ERROR": _FaultError, "CAPACITY_REACHED": _FullError}
"""Errors by their code; any other is the connection's."""


class OpenEnvWorld:
    """Speaks reset, step and close of `/ws`, and reads `/schema`."""

    def __init__(self, service: str, policy: AddressPolicy) -> None:
        base = service.removeprefix("openenv+").rstrip("/")
        self._url = f"{base}/ws"
        self._http = f"http{base.removeprefix('ws')}"
        self._name = f"the environment at {shown(service)}"
        self._policy = policy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="environment")
        self._client = HttpClient(self._name, policy, self._thread)
        self._sockets: dict[str, WebSocket] = {}
        """By session."""
        self._tools: list[Document] | None = None
        """Of an MCP server; empty for any other, None before it was asked."""
        self._faults = Faults()

    async def describe(self, seconds: float) -> Description:
        """The tools of `list_tools`, or `act` by `GET /schema`."""
        try:
            async with asyncio.timeout(seconds):
                given = [{**one, "parameters": one.get("input_schema")} for one in await self._mcp_tools()] or [await self._act()]
                tools = described_tools([{**one, "description": one.get("description") or one.get("name")} for one in given])
        except TimeoutError as error:
            raise UserCodeError(f"{self._name} did not describe itself within {seconds:.1f} s; make it faster") from error
        except (AnswerError, AddressRefusedError) as error:
            raise EnvironmentRefusedError(f"{self._name} described itself wrongly: {error}") from error
        whole = canonical([[one.name, one.description, one.parameters_json] for one in tools])
        return Description("OpenEnv", hashlib.sha256(whole.encode()).hexdigest(), determinism="recorded", tools=tools)

    async def open(self, session: Session, seconds: float) -> Answer:
        """Connects and resets. What it observes is the first message of the user; nothing: the row's prompt."""
        reset = {"seed": session.opening.seed & _SEED_BITS, "episode_id": session.opening.episode_id}
        try:
            async with asyncio.timeout(seconds):
                is_mcp = bool(await self._mcp_tools())
                self._sockets[session.id] = socket = await self._connect()
                observed = (await self._ask(socket, "reset", reset)).get("observation")
            messages = [] if is_mcp or not observed else [{"role": "user", "content": cut(canonical(observed), MAX_TEXT)}]
            return Answer(messages=opening_messages(messages))
        except _FullError as error:
            self._drop(session)
            return Answer.away(f"{self._name}: {error}; it is waited for, or let it have more sessions (max_concurrent_envs)")
        except (UserCodeError, AnswerError, TimeoutError) as error:
            return self._failed(session, error, "reset", seconds)

    async def step(self, session: Session, move: Move, seconds: float) -> Answer:
        """One `step` for each call. A turn without calls ends the episode."""
        socket = self._sockets.get(session.id)
        if socket is None:
            return Answer.error(f"the connection of this episode to {self._name} is lost; open the episode again")
        said: Document = {"messages": [], "done": False, "reward": None}
        try:
            async with asyncio.timeout(seconds):
                for call in executed_calls(move):
                    content = error_text("episode_over", "the episode ended with a call before") if said["done"] else None
                    content = content or await self._called(socket, call, said)
                    said["messages"].append({"role": "tool", "call_id": call["call_id"], "content": cut(content, MAX_TEXT)})
            messages: list[Message] = step_messages(said["messages"], move)
            return ok_answer(messages, *checked_reward(said["reward"], {}), said["done"])
        except (UserCodeError, AnswerError, TimeoutError) as error:
            return self._failed(session, error, canonical(move.document()), seconds)

    async def close(self, session: Session) -> None:
        """Closes the session's connection."""
        socket = self._sockets.pop(session.id, None)
        if socket is not None:
            await socket.send('{"type": "close"}')
            await socket.close()

    async def end(self) -> None:
        """Closes all connections."""
        for socket in self._sockets.values():
            socket.abort()
        self._sockets.clear()
        await self._client.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _called(self, socket: WebSocket, call: Mapping[str, str], said: Document) -> str:
        """What the call said, or an error that the policy may have caused; adds its reward and whether the episode is over."""
        arguments = arguments_of(call)
        if isinstance(arguments, str):
            return arguments
        if self._tools:
            action = {"type": "call_tool", "tool_name": call["name"], "arguments": arguments}
        elif call["name"] == "act":
            action = arguments
        else:
            return error_text("unknown_tool", f"there is no tool {call['name'][:80]}; known: act")
        try:
            observed = await self._ask(socket, "step", action)
        except _RefusedActionError as error:
            return error_text("invalid_arguments", str(error))
        reward, said["done"] = observed.get("reward"), observed.get("done", False)
        if reward is not None:
            number, _ = checked_reward(float(reward) if isinstance(reward, bool) else reward, {})
            said["reward"] = (said["reward"] or 0.0) + (number or 0.0)
        return _text(observed.get("observation")) if self._tools else canonical(observed.get("observation"))

    async def _mcp_tools(self) -> list[Document]:
        if self._tools is None:
            socket = await self._connect()
            try:
                observed = await self._ask(socket, "step", {"type": "list_tools"})
                match observed.get("observation"):
                    case {"tools": [*tools]} if all(isinstance(one, dict) for one in tools):
                        self._tools = tools
                    case _:
                        self._tools = []
            except (_RefusedActionError, _FaultError):
                self._tools = []
            finally:
                await socket.close()
        return self._tools

    async def _act(self) -> Document:
        try:
            body = await self._client.call(HttpRequest("GET", f"{self._http}/schema"), _BOUNDS, 1.0)
            action = parse_json(body, MAX_VALUES)["action"]
        except FAILURES as error:
            raise UserCodeError(f"{self._name} failed at /schema: {error or type(error).__name__}; check that it runs") from error
        except (ValueError, TypeError, KeyError) as error:
            raise AnswerError(f"/schema gave no schema of the action: {error}") from error
        if not isinstance(action, dict):
            raise AnswerError("/schema gave no schema of the action")
        properties = {name: of for name, of in (action.get("properties") or {}).items() if name != "metadata"}
        return {"name": "act", "description": action.get("description") or "Acts.", "parameters": {**action, "properties": properties}}

    async def _connect(self) -> WebSocket:
        endpoint = await self._policy.resolve(f"http{self._url.removeprefix('ws')}", self._thread)
        return await WebSocket.connect(self._name, self._url, endpoint, _BOUNDS.size)

    async def _ask(self, socket: WebSocket, kind: str, data: Document) -> Document:
        """The data of the observation that answers a message."""
        await socket.send(json.dumps({"type": kind, "data": data}))
        try:
            said = parse_json((await socket.receive()).encode("utf-8", "surrogatepass"), MAX_VALUES)
        except ValueError as error:
            raise AnswerError(f"its message is not JSON: {error}") from error
        match said:
            case {"type": "observation", "data": dict(observed)}:
                return observed
            case {"type": "error", "data": {"message": str(message), "code": str(code), **others}}:
                text = f"{code}: {message}{_places(others.get('errors'))}"[:400]
                raise _KINDS.get(code, UserCodeError)(text)
        raise AnswerError("its message is neither an observation nor an error of OpenEnv")

    def _failed(self, session: Session, error: Exception, asked: str, seconds: float) -> Answer:
        """The answer to a failure. The connection cannot be used again: whether the world went on is unknown."""
        self._drop(session)
        if isinstance(error, TimeoutError):
            return Answer.error(f"{self._name} did not answer within {seconds:.1f} s; make it faster")
        reason = f"{self._name}: {error}"
        return self._faults.answer(session, asked, reason) if isinstance(error, _FaultError) else Answer.error(reason)

    def _drop(self, session: Session) -> None:
        socket = self._sockets.pop(session.id, None)
        if socket is not None:
            socket.abort()


def _text(observed: Any) -> str:
    """What an MCP tool said. Raises UserCodeError for an error that the policy did not cause."""
    match observed:
        case {"error": {"error_type": str(kind), "message": str(message)}}:
            if kind not in _FOR_POLICY:
                raise UserCodeError(f"{kind}: {message}"[:400])
            return error_text(_FOR_POLICY[kind], message)
        case {"result": str(result)}:
            return result
        case {"result": {"data": data}} if data is not None:
            return data if isinstance(data, str) else canonical(data)
        case {"result": result}:
            return canonical(result)
    return canonical(observed)


def _places(errors: object) -> str:
    """Where an action is wrong, of pydantic's list of errors."""
    given = errors if isinstance(errors, list) else []
    found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in given if isinstance(one, dict) and {"loc", "msg"} <= one.keys()]
    return f" ({'; '.join(found[:3])})" if found else ""

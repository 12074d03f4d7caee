"""A user's environment behind an address of their own: JSON over HTTP, in any language."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gradbus.errors import UserCodeError
from gradbus.sandbox.bounds import MAX_REASON
from gradbus.strict_json import is_unicode
from gradbus.user_services.addresses import AddressPolicy, AddressRefusedError
from gradbus_environment.answers import AnswerError, checked_reward, ok_answer, opening_messages, step_messages
from gradbus_environment.contract import (
    DETERMINISM,
    Answer,
    Description,
    Document,
    EnvironmentRefusedError,
    Move,
    NondeterministicError,
    Session,
    ToolDescription,
    canonical,
    opening_document,
)
from gradbus_environment.worlds.json_client import JsonClient, JsonRequest, failed_call, json_object

_MAX_TOOLS: Final = 128
_MAX_SCHEMA: Final = 65_536
_MAX_TEXT: Final = 4096
_CLOSE_SECONDS: Final = 5.0


class HttpWorld:
    """Calls `/describe`, `/open`, `/step` and `/close` below a URL. What comes back is checked; a bad answer is an ERROR."""

    def __init__(self, url: str, policy: AddressPolicy) -> None:
        self._client = JsonClient(url.rstrip("/"), policy)
        self._name = self._client.name
        self._sessions: dict[str, tuple[str, str]] = {}
        """The server's names of sessions, and their episodes."""
        self.is_seeded = False
        """Until it says that it is."""

    async def describe(self, seconds: float) -> Description:
        """`GET /describe`."""
        try:
            return self._described(await self._client.call(JsonRequest("GET", "/describe"), json_object, seconds))
        except AnswerError as error:
            raise EnvironmentRefusedError(f"{self._name} answered /describe wrongly: {error}") from error
        except AddressRefusedError as error:
            raise EnvironmentRefusedError(str(error)) from error

    async def open(self, session: Session, seconds: float) -> Answer:
        """`POST /open`."""
        opening = session.opening
        asked = {"run_id": opening.run_id, "episode_id": opening.episode_id, "attempt": opening.attempt, "seed": opening.seed}
        try:
            said = await self._post("/open", {**asked, "item": json.loads(opening.item_json)}, seconds)
            if (failed := _failed(said)) is not None:
                return failed
            name = _text(said, "session", required=True)
            self._forget_others(name, session)
            self._sessions[session.id] = name, opening.episode_id
            return _with_digest(Answer(messages=opening_messages(said.get("messages"))), said)
        except AnswerError as error:
            return Answer.error(f"{self._name} answered /open wrongly: {error}")
        except UserCodeError as error:
            return failed_call(error)

    async def step(self, session: Session, move: Move, seconds: float) -> Answer:
        """`POST /step`."""
        if session.id not in self._sessions:
            return Answer.error(f"{self._name} gave the name of this session to a later /open; give each one a name of its own")
        opening = session.opening
        request_id = f"{opening.key}.{opening.attempt}.{move.turn}"
        asked = {"session": self._sessions[session.id][0], "request_id": request_id, **move.document()}
        try:
            said = await self._post("/step", asked, seconds)
            if (failed := _failed(said)) is not None:
                return failed
            reward = checked_reward(said.get("reward"), {} if said.get("components") is None else said["components"])
            return _with_digest(ok_answer(step_messages(said.get("messages"), move), *reward, said.get("done", False)), said)
        except AnswerError as error:
            return Answer.error(f"{self._name} answered /step wrongly: {error}")
        except UserCodeError as error:
            return failed_call(error)

    async def close(self, session: Session) -> None:
        """`POST /close`; a failure harms nobody here."""
        if (known := self._sessions.get(session.id)) is None:
            return
        try:
            with contextlib.suppress(UserCodeError, AnswerError):  # its server forgets the session in its own time
                await self._post("/close", {"session": known[0]}, _CLOSE_SECONDS)
        finally:
            self._sessions.pop(session.id, None)  # from now on a new session may have the name

    async def repeat(self, session: Session, seconds: float) -> None:
        """See `RepeatableWorld`. In a new session of the server, by another player's requests."""
        again = Session(_again(session.id), replace(session.opening, player=f"{session.opening.player}again"))
        asked = [opening_document(session.opening), *(move.document() for move in session.moves)]
        try:
            for at, (move, document, expected) in enumerate(zip([None, *session.moves], asked, session.digests, strict=True)):
                answer = await (self.open(again, seconds) if move is None else self.step(again, move, seconds))
                if answer.status == "error":
                    raise UserCodeError(answer.reason)
                again.digests.append(again.next_digest(document, answer))
                if again.digests[-1] != expected:
                    raise NondeterministicError.at(at - 1)
        finally:
            await self.close(again)

    async def end(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _forget_others(self, name: str, session: Session) -> None:
        """What had this name has lost its state: a later step of it is an error. Raises AnswerError if that is another episode's."""
        others = [other for other, (taken, _) in self._sessions.items() if taken == name and session.id != _again(other)]
        episodes = {self._sessions.pop(other)[1] for other in others}
        if episodes - {session.opening.episode_id}:
            raise AnswerError(f"the session {name[:80]!r} is another episode's, which is not closed; give each /open a name of its own")

    async def _post(self, path: str, asked: Document, seconds: float) -> Document:
        return await self._client.call(JsonRequest("POST", path, asked), json_object, seconds)

    def _described(self, said: Document) -> Description:
        name, version, digest = (_text(said, field, required=field == "name") for field in ("name", "version", "digest"))
        determinism = said.get("determinism", "none")
        if determinism not in DETERMINISM:
            raise AnswerError('determinism is none of "seeded", "recorded" and "none"; send one')
        tools = described_tools(said.get("tools", []))
        whole = canonical({"name": name, "version": version, "tools": [[one.name, one.description, one.parameters_json] for one in tools]})
        self.is_seeded = determinism == "seeded"
        return Description(name, digest or hashlib.sha256(whole.encode()).hexdigest(), determinism, tools)


def _again(session_id: str) -> str:
    """Id of the session in which another one is repeated."""
    return f"{session_id} again"


def _failed(said: Document) -> Answer | None:
    """The answer if the environment says that it failed. Raises AnswerError for an unknown status."""
    status, reason = said.get("status", "ok"), said.get("reason", "")
    reason = reason[:MAX_REASON] if isinstance(reason, str) and is_unicode(reason) else ""
    match status:
        case "ok":
            return None
        case "invalid":
            return Answer.invalid(reason or "the environment gave no reason")
        case "error":
            return Answer.error(reason or "the environment gave no reason")
    raise AnswerError('status is none of "ok", "invalid" and "error"')


def _with_digest(answer: Answer, said: Document) -> Answer:
    digest = _text(said, "state_digest", required=False)
    return Answer(answer.status, answer.reason, answer.messages, answer.reward, answer.components, answer.done, digest)


def _text(said: Document, name: str, *, required: bool) -> str:
    value = said.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or len(value) > _MAX_TEXT or (required and not value):
        raise AnswerError(f"{name} is no text of at most {_MAX_TEXT} characters")
    return value


def described_tools(given: object) -> list[ToolDescription]:
    """The tools of a description. Raises AnswerError."""
    if not isinstance(given, list) or len(given) > _MAX_TOOLS:
        raise AnswerError(f"tools is no list of at most {_MAX_TOOLS} tools")
    tools = [_tool(one) for one in given]
    names = [one.name for one in tools]
    if len(set(names)) < len(names):
        raise AnswerError("two tools have one name")
    return tools


def _tool(given: Any) -> ToolDescription:
    if not isinstance(given, Mapping):
        raise AnswerError("a tool is no object of name, description and parameters")
    name, description = (_text(dict(given), field, required=True) for field in ("name", "description"))
    parameters = given.get("parameters")
    if not isinstance(parameters, dict) or len(text := json.dumps(parameters, ensure_ascii=False)) > _MAX_SCHEMA:
        raise AnswerError(f"the parameters of the tool {name[:80]!r} are no JSON Schema of at most {_MAX_SCHEMA} characters")
    return ToolDescription(name, description, text)

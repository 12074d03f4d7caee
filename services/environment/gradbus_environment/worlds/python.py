"""A user's Python environment in children of this service."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradbus.errors import UserCodeError
from gradbus.sandbox.budget import ProcessBudget
from gradbus.sandbox.process import ProcessStoppedError, SourceError
from gradbus_environment.answers import AnswerError, RewardError, checked_reward, ok_answer, opening_messages, step_messages
from gradbus_environment.contract import (
    Answer,
    Description,
    Document,
    EnvironmentRefusedError,
    Move,
    NondeterministicError,
    Opening,
    Session,
    ToolDescription,
    canonical,
    log_digest,
    opening_document,
)
from gradbus_environment.sandbox.process import EnvironmentProcess
from gradbus_environment.worlds.children import Child, Children
from gradbus_environment.worlds.faults import Faults
from gradbus_environment.worlds.sandboxes import Commands


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """How many children there are, and what they need."""

    per_run: int = 2
    allow_unisolated_network: bool = False
    """Run them even where their network cannot be taken away, for operators who trust all users."""


class PythonWorld:
    """Runs `class Environment` of one source."""

    is_seeded = True

    def __init__(self, source: str, settings: ChildSettings, budget: ProcessBudget, commands: Commands | None = None) -> None:
        """`commands`: what serves the source's `self.sandbox`, if the run has one."""
        self._source = source
        self._commands = commands
        self._settings = settings
        self._children = Children(self._start, settings.per_run, budget)
        self._faults = Faults()

    async def describe(self, seconds: float) -> Description:
        """The tools, and a digest of the source and of Python."""
        try:
            async with asyncio.timeout(seconds):
                confinement = await self._commands.confinement() if self._commands else ""
                loaded = (await self._children.any_process()).loaded
        except SourceError as error:
            raise EnvironmentRefusedError(str(error)) from error
        except TimeoutError as error:
            raise UserCodeError(
                f"no child of the environment, or no sandbox, could be started in {seconds:.0f} s; the machine is too busy"
            ) from error
        digest = hashlib.sha256(canonical({"source": self._source, "python": str(loaded.get("python"))}).encode("utf-8", "replace"))
        tools = [_tool(one) for one in loaded.get("tools", [])]
        return Description("Environment", digest.hexdigest(), determinism="seeded", tools=tools, sandbox=confinement)

    async def open(self, session: Session, seconds: float) -> Answer:
        """Calls `reset`."""
        return await self._answer(session, None, seconds)

    async def step(self, session: Session, move: Move, seconds: float) -> Answer:
        """Calls the tools, `step` and `reward`."""
        return await self._answer(session, move, seconds)

    async def close(self, session: Session) -> None:
        """Lets the child forget the session."""
        self._children.forget(session.id)

    async def repeat(self, session: Session, seconds: float) -> None:
        """See `RepeatableWorld`. In a new process, whose addresses, clock and order of sets are others."""
        async with self._children.apart() as child:
            await _replay(child, session, seconds)

    async def end(self) -> None:
        """Stops the children."""
        await self._children.end()

    async def _start(self) -> EnvironmentProcess:
        allow_network = self._settings.allow_unisolated_network
        return await EnvironmentProcess.start(self._source, allow_network=allow_network, commands=self._commands)

    async def _answer(self, session: Session, move: Move | None, seconds: float) -> Answer:
        """The opening's answer, or that of a move. After an ERROR the session begins anew in a child, so that a repeated call finds the
        state before it."""
        try:
            child = await self._children.enter(session.id)
        except UserCodeError as error:
            return Answer.error(str(error))
        answer = Answer.error("the call was given up; ask again")
        try:
            if move is not None and session.id not in child.residents:
                await _replay(child, session, seconds)
            answer = self._judged(session, move, await _call(child, session.id, session.opening, move, seconds))
        except AnswerError as error:
            child.process.kill()
            answer = Answer.error(f"the environment's process broke its protocol: {error}; do not use its open files")
        except UserCodeError as error:
            answer = Answer.error(str(error))
        finally:
            if answer.status == "error":
                child.residents.discard(session.id)
                child.closed.append(session.id)
            else:
                child.residents.add(session.id)
            self._children.leave(child)
        return answer

    def _judged(self, session: Session, move: Move | None, said: Document) -> Answer:
        """The child's answer. A fault of the user's functions is tried again, and makes the item invalid if it comes again."""
        if said["status"] != "fault":
            return _read(move, said)
        return self._faults.answer(session, canonical(_asked(session, move)), said["reason"])


async def _call(child: Child, session: str, opening: Opening, move: Move | None, seconds: float) -> Document:
    closed, child.closed = child.closed, []
    if move is None:
        fields = {"item_json": opening.item_json, "seed": opening.seed}
        said = await child.process.exchange("open", session, fields, closed, seconds)
    else:
        said = await child.process.exchange("step", session, move.document(), closed, seconds)
    if said["status"] == "memory":
        child.process.kill()
        raise ProcessStoppedError("the memory of the environment's process is full; keep less in its objects")
    return said


async def _replay(child: Child, session: Session, seconds: float) -> None:
    """Makes the session's calls again in a child that lacks it. Raises NondeterministicError if an answer is another one."""
    digest = ""
    for turn, (move, expected) in enumerate(zip([None, *session.moves], session.digests, strict=True)):
        answer = _read(move, await _call(child, session.id, session.opening, move, seconds))
        digest = log_digest(digest, _asked(session, move), answer)
        if digest != expected:
            raise NondeterministicError.at(turn - 1)


def _asked(session: Session, move: Move | None) -> Document:
    return opening_document(session.opening) if move is None else move.document()


def _read(move: Move | None, said: Document) -> Answer:
    """Raises AnswerError for what the child cannot have sent."""
    if said["status"] == "invalid":
        return Answer.invalid(said["reason"])
    if said["status"] == "fault":
        return Answer.error(said["reason"])
    if move is None:
        return Answer(messages=opening_messages(said.get("messages")))
    messages = step_messages(said.get("messages"), move)
    try:
        return ok_answer(messages, *_summed(said.get("rewards")), said.get("done"))
    except RewardError as error:
        return Answer.invalid(str(error))


def _summed(rewards: object) -> tuple[float | None, dict[str, float]]:
    """The sum of what `step` and `reward` gave; None if neither gave any."""
    if not isinstance(rewards, list):
        raise AnswerError("it sent no rewards")
    total: float | None = None
    components: dict[str, float] = {}
    for one in rewards:
        match one:
            case [reward, Mapping() as parts]:
                number, checked = checked_reward(reward, parts)
            case _:
                raise AnswerError("it sent no rewards")
        total = (total or 0.0) + (number or 0.0)
        for name, value in checked.items():
            components[name] = components.get(name, 0.0) + value
    return (None, {}) if total is None else checked_reward(total, components)


def _tool(sent: Any) -> ToolDescription:
    match sent:
        case {"name": str(name), "description": str(description), "parameters": dict(parameters)}:
            return ToolDescription(name, description, json.dumps(parameters))
    raise UserCodeError("the environment's process broke its protocol; do not use its open files")

"""One process with sessions of a user's environment, as the service sees it. `child.py` is the other end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

from gradbus.sandbox.bounds import MAX_REASON, MAX_WHERE
from gradbus.sandbox.process import ChildProgram, ConfinedProcess, ProcessStoppedError, SourceError, boot

LOAD_SECONDS = 10.0
"""Of the user's source."""
_LINE_BYTES = 8 << 20
"""The texts of an answer have at most a million characters, each of which JSON writes in up to six bytes."""
_BOOT = boot("gradbus_environment.sandbox.child")
_FOLDER = str(Path(__file__).resolve().parents[2])

Document = dict[str, Any]


class CommandServer(Protocol):
    """Executes commands outside the child, which may start no process."""

    async def execute(self, asked: Any, limit: asyncio.Timeout) -> Document:
        """{"outcome": ...}, or {"refused": reason} for what no sandbox takes. Moves `limit` by the wait for a place.

        Raises UserCodeError if there is no sandbox.
        """
        ...


class EnvironmentProcess(ConfinedProcess):
    """A confined process that holds sessions of one environment."""

    _calls = 0
    _commands: CommandServer | None = None
    loaded: Document
    """The tools, and the version of Python."""

    @classmethod
    async def start(cls, source: str, *, allow_network: bool, commands: CommandServer | None = None) -> EnvironmentProcess:
        """Starts, confines and loads. Raises SourceError for a source that fails, UserCodeError if it cannot be confined.

        `commands` executes what the source asks of `self.sandbox`.
        """
        program = ChildProgram("environment", "environment", _BOOT, _FOLDER, _LINE_BYTES)
        process = await cls.confined(program, allow_network=allow_network)
        process._commands = commands
        try:
            process.loaded = await process._load(source)
        except BaseException:
            await process.stop()
            raise
        process.pause()
        return process

    async def exchange(self, call: str, session: str, fields: Document, closed: list[str], seconds: float) -> Document:
        """The child's answer to one call, unchecked but for its status. Afterwards the child runs on until it is paused.

        Kills the process and raises ProcessStoppedError if there is none within `seconds`.
        """
        self.resume()
        self._calls += 1
        try:
            async with asyncio.timeout(seconds) as limit:
                await self._send([self._calls, call, session, fields, closed])
                match await self._receive_answer(limit):
                    case [self._calls, {"status": "ok"} as answer]:
                        pass
                    case [self._calls, {"status": "invalid" | "fault" | "memory", "reason": str(reason), **others} as answer] if not others:
                        answer["reason"] = reason[: MAX_REASON + MAX_WHERE]
                    case _:
                        raise self._stopped("process broke its protocol; do not use its open files")
        except TimeoutError as error:
            self.kill()
            reason = f"{call}: the environment was stopped after {seconds:.1f} s; make its calls shorter, or raise environment.step_seconds"
            raise ProcessStoppedError(reason) from error
        except BaseException:
            self.kill()  # also when the caller is cancelled: the next call could not use the rest of this exchange
            raise
        return dict(answer)

    async def _receive_answer(self, limit: asyncio.Timeout) -> Any:
        """The answer to the call; before it the child may ask for commands, which come of the call's own time."""
        while True:
            said = await self._receive()
            match said:
                case [self._calls, {"command": asked}] if self._commands is not None:
                    await self._send(await self._commands.execute(asked, limit))
                case _:
                    return said

    async def _load(self, source: str) -> Document:
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                await self._send({"source": source, "has_sandbox": self._commands is not None})
                loaded = await self._receive_field("loaded")
        except TimeoutError as error:
            raise SourceError(f"the environment's source did not load in {LOAD_SECONDS:.0f} s; do less at its top level") from error
        except ProcessStoppedError as error:
            raise SourceError(f"the environment's source ended its process while it loaded: {error}") from error
        if "fault" in loaded:
            raise SourceError(f"the environment does not load: {str(loaded['fault'])[: MAX_REASON + MAX_WHERE]}")
        return loaded

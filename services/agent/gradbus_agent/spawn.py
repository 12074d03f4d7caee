"""Starts a command for each episode: an agent that the operator named, in a sandbox from which it reaches this service alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final

from gradbus.errors import UserCodeError
from gradbus.sandbox.commands.loopback import HOST, PORT
from gradbus.sandbox.commands.run import FoundLevel, NoSandboxError, SandboxError, ServedCommand, end_process, start_client
from gradbus.telemetry import get_logger
from gradbus_agent.contract import RefusalError, Reply, Verdict
from gradbus_agent.episodes.episode import AgentEpisode

SPAWN: Final = "spawn://"
_BASE_URL: Final = f"http://{HOST}:{PORT}"
_END_SECONDS: Final = 2.0
"""Which a command has to end by itself once its episode is over."""
_TOLD_BYTES: Final = 1000
"""The end of what a command wrote, told when it failed."""
_log = get_logger(__name__)
Serve = Callable[[socket.socket], AbstractAsyncContextManager[None]]
"""Serves agents on one more socket."""


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """An agent that submitters may name."""

    command: tuple[str, ...]
    """The program by its whole path, and its arguments; `python` is this service's own, without packages."""
    paths: tuple[str, ...] = ()
    """What it may read and execute beside the system's programs; not below `/work` and `/tmp`, which are its own."""
    memory_mib: int = 1024
    environment: dict[str, str] = field(default_factory=dict)
    """Variables beside those of the episode."""


class AgentCommands:
    """The commands of all episodes, at most `limit` at once."""

    def __init__(self, commands: Mapping[str, AgentCommand], limit: int, serve: Serve) -> None:
        self._commands = commands
        self._serve = serve
        self._places = asyncio.Semaphore(limit)
        self._level = FoundLevel("agents' commands")
        self._running: set[asyncio.Task[None]] = set()

    async def why_not(self, url: str) -> str:
        """Why the command of this URL cannot be started here; empty if it can. Raises SandboxError if that is not known now."""
        if (name := url.removeprefix(SPAWN)) not in self._commands:
            known = ", ".join(self._commands) or "none"
            return f"the operator names no agent {name[:80]!r} in GRADBUS_AGENT_COMMANDS; known: {known}"
        try:
            await self._level.get()
        except NoSandboxError as error:
            return str(error)
        return ""

    async def play(self, episode: AgentEpisode, give: Callable[[], str], seconds: float) -> Reply | None:
        """Starts the episode's command, with the key that `give` makes; None: it plays. Waits so many seconds for a place.

        An error that passes may come after the key was given: the command does not have it.
        """
        try:
            if why := await self.why_not(episode.opening.agent):
                return Reply.error(why)
        except SandboxError as error:
            return Reply.away(_not_started(error))
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError:
            return Reply.queued(len(self._running), 1)
        try:
            process, listener = await self._started(self._commands[episode.opening.agent.removeprefix(SPAWN)], key := give())
        except UserCodeError as error:
            self._places.release()
            return Reply.away(_not_started(error)) if isinstance(error, SandboxError) else Reply.error(_not_started(error))
        except BaseException:
            self._places.release()
            raise
        play = _Play(episode, key, process, listener)
        task = asyncio.create_task(play.run(self._serve), name="agent command")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return None

    async def close(self) -> None:
        """Ends all commands."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _started(self, command: AgentCommand, key: str) -> tuple[asyncio.subprocess.Process, socket.socket]:
        """Raises NoSandboxError and SandboxError."""
        variables = {
            "OPENAI_BASE_URL": f"{_BASE_URL}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": _BASE_URL,
            "ANTHROPIC_API_KEY": key,
        }
        served = ServedCommand(command.command, command.paths, command.memory_mib, {**command.environment, **variables})
        return await start_client(served, await self._level.get())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("agent_command_crashed", exc_info=error)


def _not_started(error: UserCodeError) -> str:
    return f"the agent's command was not started: {error}"


@dataclass(slots=True)
class _Play:
    """A command that plays an episode."""

    episode: AgentEpisode
    key: str
    process: asyncio.subprocess.Process
    listener: socket.socket
    _said: bytes = b""

    async def run(self, serve: Serve) -> None:
        """Returns when the command has ended: by itself, or because its episode is over."""
        streams = [stream for stream in (self.process.stdout, self.process.stderr) if stream is not None]
        reading = [asyncio.create_task(self._read(stream), name="agent output") for stream in streams]
        telling = asyncio.create_task(self._tell(), name="agent input")
        try:
            async with serve(self.listener):
                await self._until_ended()
        finally:
            telling.cancel()
            await end_process(self.process)
            await asyncio.wait(reading, timeout=_END_SECONDS)
            for task in reading:
                task.cancel()
        self._exited()

    async def _tell(self) -> None:
        """Gives the command the episode at its standard input."""
        offer = self.episode.opening.document(f"{_BASE_URL}/v1", self.key)
        if self.process.stdin is not None:
            with contextlib.suppress(ConnectionError):  # it does not read it
                self.process.stdin.write(json.dumps(offer).encode() + b"\n")
                await self.process.stdin.drain()
            self.process.stdin.close()

    async def _until_ended(self) -> None:
        exited, over = asyncio.create_task(self.process.wait()), asyncio.create_task(self.episode.until_over())
        try:
            await asyncio.wait({exited, over}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({exited}, timeout=_END_SECONDS)
        finally:
            over.cancel()
            exited.cancel()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Reads what the command writes, of which the end is kept."""
        while part := await stream.read(1 << 16):
            self._said = (self._said + part)[-_TOLD_BYTES:]

    def _exited(self) -> None:
        """A command that ended well without a word gives no reward of its own; one that failed fails its episode."""
        if self.episode.over:
            return
        status = self.process.returncode
        if status == 0:
            with contextlib.suppress(RefusalError):
                self.episode.end(Verdict("ok"))
            return
        said = self._said.decode("utf-8", "replace").strip().replace(self.key, "<key>") or "it said nothing"
        _log.info("agent_command_failed", episode=self.episode.opening.episode_id, status=status, said=said)
        self.episode.finish(f"its command ended with the status {status} before the episode did: {said}")

"""The environments of the runs, with their sessions: which attempt of an episode counts, and which turn comes next."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Final

from gradbus.spec.sections import EnvironmentSpec
from gradbus.telemetry import get_logger
from gradbus_environment.contract import Answer, Move, Opening, Session, World, opening_document
from gradbus_environment.repeats import checked, is_over
from gradbus_environment.telemetry import count_sessions

_log = get_logger(__name__)
MAX_SESSIONS: Final = 4096
"""Of one run."""
_MAX_EPISODES: Final = 65_536
"""Of one run, whose newest attempt is remembered."""


@dataclass(slots=True)
class OpenSession:
    """A session with what makes its calls repeatable."""

    session: Session
    opened: Answer
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the call in flight."""
    last: Answer | None = None
    """Answer to the newest move."""
    used: float = field(default_factory=time.monotonic)
    worker: str = ""
    """The process that plays it; empty: nothing is known of its life."""


@dataclass(slots=True)
class _SharedLock:
    """A lock that is forgotten when nobody uses it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class OpenRun:
    """The environment of one run and its sessions."""

    def __init__(self, section: EnvironmentSpec, world: World) -> None:
        self.section = section
        self.world = world
        self.calls = 0
        """In progress."""
        self.used = time.monotonic()
        self._sessions: dict[str, OpenSession] = {}
        self._of_episode: dict[str, str] = {}
        self._attempts: OrderedDict[str, int] = OrderedDict()
        """The newest attempt of each episode, whether or not its session is still open."""
        self._opening: dict[str, _SharedLock] = {}
        """By episode: the opens that are in progress."""
        self._moves: set[asyncio.Task[Answer]] = set()
        """In progress, also those whose callers are gone."""

    @property
    def is_empty(self) -> bool:
        """Whether it has neither sessions nor calls."""
        return not self._sessions and not self.calls

    def has(self, session: str) -> bool:
        """Whether the session is one of this run."""
        return session in self._sessions

    async def open(self, opening: Opening, seconds: float, worker: str = "", *, resume: bool = False) -> tuple[str, Answer]:
        """The session and its first answer. The same opening again finds both as they are; a newer attempt closes the older session.

        With `resume` no session is begun. `worker` plays it from now on.
        """
        episode = opening.key
        shared = self._opening.setdefault(episode, _SharedLock())
        shared.users += 1
        try:
            async with shared.lock:
                session, answer = await self._open(opening, seconds, resume=resume)
                if session:
                    self._sessions[session].worker = worker
                return session, answer
        finally:
            shared.users -= 1
            if not shared.users:
                del self._opening[episode]

    def worker_of(self, session: str) -> str:
        """Who plays a session of this run; empty if nothing is known of its life."""
        return self._sessions[session].worker

    async def step(self, name: str, move: Move, seconds: float) -> Answer:
        """The answer to a move: the next one, or the last one again.

        A move goes on when its caller is gone: the next worker that asks for it gets its answer, and a world is not called twice.
        """
        moving = asyncio.create_task(self._step(self._sessions[name], move, seconds))
        self._moves.add(moving)
        moving.add_done_callback(self._moved)
        return await asyncio.shield(moving)

    def _moved(self, moving: asyncio.Task[Answer]) -> None:
        self._moves.discard(moving)
        if not moving.cancelled():
            moving.exception()  # the caller has it; one that is gone needs none

    async def _step(self, entry: OpenSession, move: Move, seconds: float) -> Answer:
        async with entry.lock:
            entry.used = time.monotonic()
            session = entry.session
            turn = len(session.moves)
            if move.turn == turn - 1 and entry.last is not None:
                if move == session.moves[-1]:
                    return entry.last
                return Answer.error(f"turn {move.turn} was another one before; a repeated request must equal the first")
            if move.turn != turn:
                return Answer.error(f"turn {move.turn} is not the next one of this session, which is {turn}; send the turns in order")
            if entry.last is not None and entry.last.status == "invalid":
                return Answer.error(f"the episode ended as invalid: {entry.last.reason}; close it")
            answer = await self.world.step(session, move, seconds)
            if answer.status != "error":
                digest = session.next_digest(move.document(), answer)
                session.moves.append(move)
                session.digests.append(digest)
                entry.last = answer = replace(answer, state_digest=answer.state_digest or digest)
                if is_over(move, answer):
                    entry.last = answer = await checked(self.world, session, answer, seconds)
            entry.used = time.monotonic()
            return answer

    async def close(self, name: str) -> None:
        """Forgets the session, if it is known."""
        entry = self._sessions.pop(name, None)
        if entry is None:
            return
        count_sessions(-1)
        episode = entry.session.opening.key
        if self._of_episode.get(episode) == name:
            del self._of_episode[episode]
        await self.world.close(entry.session)

    async def close_idle(self, seconds: float) -> None:
        """Closes sessions that had no call for so long."""
        before = time.monotonic() - seconds
        idle = [name for name, entry in self._sessions.items() if entry.used < before and not entry.lock.locked()]
        if idle:
            run_id = self._sessions[idle[0]].session.opening.run_id
            _log.info("sessions_idle", run_id=run_id, sessions=len(idle), seconds=seconds)
        await asyncio.gather(*map(self.close, idle))

    async def close_lost(self, workers: Container[str]) -> None:
        """Closes the sessions of workers that are gone, but for those of recorded episodes, which another worker goes on with."""
        lost = [name for name, entry in self._sessions.items() if entry.worker in workers and entry.session.opening.player]
        if lost:
            _log.info("worker_gone", run_id=self._sessions[lost[0]].session.opening.run_id, sessions=len(lost))
        await asyncio.gather(*map(self.close, lost))

    async def end(self) -> None:
        """Closes all sessions and frees the environment."""
        count_sessions(-len(self._sessions))
        self._sessions.clear()
        for moving in self._moves:
            moving.cancel()
        await asyncio.gather(*self._moves, return_exceptions=True)
        await self.world.end()

    async def _open(self, opening: Opening, seconds: float, *, resume: bool) -> tuple[str, Answer]:
        episode = opening.key
        newest = self._attempts.get(episode, -1)
        if opening.attempt < newest:
            return "", Answer.error(f"attempt {opening.attempt} of this episode is older than attempt {newest}; give it up")
        known = self._of_episode.get(episode)
        if known is not None and opening.attempt == newest:
            entry = self._sessions[known]
            if entry.session.opening != opening:
                return "", Answer.error("this attempt was opened with another item or seed; a repeated request must equal the first")
            entry.used = time.monotonic()
            return known, entry.opened
        if resume:
            return "", Answer("unknown_session", "the session of this attempt is not open any more; begin another attempt")
        if known is not None:
            await self.close(known)
        if len(self._sessions) >= MAX_SESSIONS:
            return "", Answer.away(f"the run has {MAX_SESSIONS} sessions, as many as it may; use fewer slots or workers")
        self._remember(episode, opening.attempt)
        return await self._begin(Session(secrets.token_hex(16), opening), seconds)

    async def _begin(self, session: Session, seconds: float) -> tuple[str, Answer]:
        try:
            answer = await self.world.open(session, seconds)
        except BaseException:  # also of a caller who gave up: the world may have begun a session
            await asyncio.shield(self.world.close(session))
            raise
        if answer.status != "ok":
            await self.world.close(session)
            return "", answer
        session.digests.append(session.next_digest(opening_document(session.opening), answer))
        answer = replace(answer, state_digest=answer.state_digest or session.digests[-1])
        self._sessions[session.id] = OpenSession(session, answer)
        self._of_episode[session.opening.key] = session.id
        count_sessions(1)
        return session.id, answer

    def _remember(self, episode: str, attempt: int) -> None:
        self._attempts[episode] = attempt
        self._attempts.move_to_end(episode)
        if len(self._attempts) > _MAX_EPISODES:
            self._attempts.popitem(last=False)

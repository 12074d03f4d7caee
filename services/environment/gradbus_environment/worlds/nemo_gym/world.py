"""A resources server of NeMo Gym behind an address: its session is a cookie, its episodes are rows of Gym's datasets.

A server with `/reset` and `/step` is a world of turns (`gymnasium_agent` plays it at Gym), one with `/verify` has tools (`simple_agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from typing import Final, Protocol

from gradbus.errors import UserCodeError
from gradbus.user_services.addresses import AddressPolicy, AddressRefusedError
from gradbus_environment.answers import AnswerError
from gradbus_environment.contract import Answer, Description, Document, EnvironmentRefusedError, Move, Session, canonical
from gradbus_environment.worlds.faults import Faults
from gradbus_environment.worlds.json_client import JsonRequest, failed_call, json_object, was_never_asked
from gradbus_environment.worlds.nemo_gym.gymnasium import Gymnasium
from gradbus_environment.worlds.nemo_gym.server import GymEpisode, GymFaultError, GymServer, InvalidEpisodeError
from gradbus_environment.worlds.nemo_gym.tools import GymTools

NEMO_GYM: Final = ("nemo-gym+http://", "nemo-gym+https://")
_CLOSE_SECONDS: Final = 5.0


class _Play(Protocol):
    """How a kind of server is played. Raises UserCodeError and AnswerError for what the policy did not cause."""

    async def begin(self, episode: GymEpisode) -> Answer:
        """The opening."""
        ...

    async def turn(self, episode: GymEpisode, move: Move) -> Answer:
        """The answer to a turn."""
        ...


class NemoGymWorld:
    """Asks a server by `/openapi.json` what it is, and plays it accordingly."""

    def __init__(self, service: str, policy: AddressPolicy) -> None:
        self._server = GymServer(service.removeprefix("nemo-gym+").rstrip("/"), policy)
        self._episodes: dict[str, GymEpisode] = {}
        """By session."""
        self._faults = Faults()
        self._known: tuple[_Play, Description] | None = None
        self._asking = asyncio.Lock()

    async def describe(self, seconds: float) -> Description:
        """What its paths say. It has no tools of its own: each row brings them."""
        try:
            return (await self._asked(seconds))[1]
        except (AnswerError, AddressRefusedError) as error:
            raise EnvironmentRefusedError(f"{self._server.name} cannot be used: {error}") from error

    async def open(self, session: Session, seconds: float) -> Answer:
        """Begins a session of the server with the row."""
        opening = session.opening
        episode = GymEpisode(f"{opening.key}.{opening.attempt}", json.loads(opening.item_json), seconds=seconds)
        self._episodes[session.id] = episode
        try:
            async with asyncio.timeout(seconds):
                play, _ = await self._asked(seconds)
                return await play.begin(episode)
        except (UserCodeError, AnswerError, TimeoutError) as error:
            return self._failed(session, error, "open", seconds)

    async def step(self, session: Session, move: Move, seconds: float) -> Answer:
        """One turn. After a failure the session is of no use, unless the server says that a step may be repeated."""
        episode = self._episodes.get(session.id)
        if episode is None or episode.is_lost:
            return Answer.error(f"what became of the last step at {self._server.name} is unknown; open the episode again")
        episode.seconds, episode.is_midway = seconds, False
        episode.is_lost = not episode.is_repeatable  # until there is an answer, also for a caller who gives up
        try:
            async with asyncio.timeout(seconds):
                play, _ = await self._asked(seconds)
                answer = await play.turn(episode, move)
        except (UserCodeError, AnswerError, TimeoutError) as error:
            episode.is_lost = episode.is_lost and (episode.is_midway or not was_never_asked(error))
            return self._failed(session, error, canonical(move.document()), seconds)
        episode.is_lost = False
        return answer

    async def close(self, session: Session) -> None:
        """`POST /close` of a server that wants it; a failure harms nobody here."""
        episode = self._episodes.pop(session.id, None)
        if episode is not None and episode.closes:
            episode.seconds = _CLOSE_SECONDS
            with contextlib.suppress(UserCodeError, AnswerError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._server.ask(episode, "/close", {})

    async def end(self) -> None:
        """Closes the connections."""
        await self._server.client.close()

    async def _asked(self, seconds: float) -> tuple[_Play, Description]:
        async with self._asking:
            if self._known is None:
                self._known = self._kind(await self._server.client.call(JsonRequest("GET", "/openapi.json"), json_object, seconds))
            return self._known

    def _kind(self, described: Document) -> tuple[_Play, Description]:
        paths = described.get("paths")
        found: Document = paths if isinstance(paths, dict) else {}
        digest = hashlib.sha256(canonical(described).encode("utf-8", "replace")).hexdigest()
        description = Description("NeMo Gym", digest, determinism="recorded", tools_by_episode=True)
        if {"/reset", "/step"} <= found.keys():
            return Gymnasium(self._server), description
        if "/verify" in found:
            return GymTools(self._server), description
        raise AnswerError("/openapi.json has neither /reset and /step nor /verify; give the address of a resources server")

    def _failed(self, session: Session, error: Exception, asked: str, seconds: float) -> Answer:
        if isinstance(error, TimeoutError):
            return Answer.error(f"{self._server.name} did not answer within {seconds:.1f} s; make it faster")
        if isinstance(error, InvalidEpisodeError):
            return Answer.invalid(str(error))
        if isinstance(error, GymFaultError):
            return self._faults.answer(session, asked, str(error))
        return failed_call(error) if isinstance(error, UserCodeError) else Answer.error(f"{self._server.name} answered wrongly: {error}")

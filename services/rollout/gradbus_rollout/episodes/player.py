"""Plays the episodes of a run.

A failure that the policy did not cause begins the episode anew; its draws are the same then, for each turn has its own seed. After
the third one the sample is masked with the reason: it never has a reward of 0. A session that a service lost when it was started again
is no failure of the environment, until that has happened too often to be chance: its turns are repeated, or, where they cannot be, the
episode begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from gradbus.aio.tasks import run_to_end
from gradbus.errors import EnvironmentFaultError, InvalidItemError, SessionLostError
from gradbus.telemetry import get_logger
from gradbus_rollout.episodes.attempt import Attempt, PlayerParts
from gradbus_rollout.episodes.episode import LOST_SESSIONS, PAUSE_SECONDS, EpisodeStart, LostSessions, PlayedEpisode
from gradbus_rollout.episodes.journal import Journal

_log = get_logger(__name__)
_ATTEMPTS: Final = 3
"""That may fail."""
_LEAVE_SECONDS: Final = 5.0
"""To leave or close a session when the player is stopped: the worker's next run waits for it."""


class EpisodePlayer:
    """Plays the episodes of one run, so many at a time."""

    def __init__(self, parts: PlayerParts, at_a_time: int) -> None:
        self._parts = parts
        self._places = asyncio.Semaphore(at_a_time)

    async def play(self, start: EpisodeStart) -> PlayedEpisode:
        """The episode, whatever happens to it.

        Raises ModelError as the engine and the tokenizer do, and SupersededError if another worker plays it from here on.
        """
        async with self._places:
            journals = self._parts.journals
            journal = Journal() if journals is None else await journals.take(start.place, start.player, start.episode_id)
            failed, lost = 0, LostSessions()
            while True:
                episode = Attempt(self._parts, start, journal, lost)
                try:
                    return await _played(episode, journal)
                except EnvironmentFaultError as error:
                    _log.warning("episode_failed", episode=start.episode_id, attempt=episode.number, error=str(error))
                    if isinstance(error, SessionLostError):
                        lost.count += 1
                    else:
                        failed += 1
                    if failed == _ATTEMPTS:
                        return episode.failed(f"the environment failed in {_ATTEMPTS} attempts: {error}")
                    if lost.count == LOST_SESSIONS:
                        return episode.failed(f"the episode's session was lost {LOST_SESSIONS} times: {error}")
                await asyncio.sleep(PAUSE_SECONDS * 2 ** max(0, failed - 1))


async def _played(episode: Attempt, journal: Journal) -> PlayedEpisode:
    """The episode, after which its session is closed, unless another worker plays on in it, or may.

    After an EnvironmentFaultError the journal has begun the next attempt.
    """
    try:
        try:
            return await episode.play()
        except InvalidItemError as error:
            return episode.failed(str(error))
        except EnvironmentFaultError:
            await journal.begin_anew()  # before the session is closed: if this worker is fenced, the session is another one's
            raise
    except EnvironmentFaultError:
        raise
    except BaseException:
        await run_to_end(_left(episode, journal))  # whoever cancels it cancels it again and again
        raise
    finally:
        await episode.close()


async def _left(episode: Attempt, journal: Journal) -> None:
    """Leaves the session to the next worker, or closes it if there will be none."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LEAVE_SECONDS):
            if not await journal.is_inherited():
                await episode.close()
    episode.leave()

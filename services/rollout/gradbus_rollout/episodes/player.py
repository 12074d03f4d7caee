"""Plays the episodes of a run.

A failure that the policy did not cause begins the episode anew; its draws are the same then, for each turn has its own seed. After
the last attempt the sample is masked with the reason: it never has a reward of 0.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gradbus.errors import EnvironmentFaultError, InvalidItemError
from gradbus.telemetry import get_logger
from gradbus_rollout.episodes.attempt import Attempt, PlayerParts
from gradbus_rollout.episodes.episode import EpisodeStart, PlayedEpisode
from gradbus_rollout.episodes.journal import Journal

_log = get_logger(__name__)
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.25
"""Before the second attempt; twice as long before each further one."""


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
            for tried in range(_ATTEMPTS):
                if tried:
                    await journal.begin_anew()
                    await asyncio.sleep(_PAUSE_SECONDS * 2 ** (tried - 1))
                episode = Attempt(self._parts, start, journal)
                try:
                    return await _played(episode, journal)
                except EnvironmentFaultError as error:
                    _log.warning("episode_failed", episode=start.episode_id, attempt=journal.attempt, error=str(error))
                    reason = str(error)
            return episode.failed(f"the environment failed in {_ATTEMPTS} attempts: {reason}")


async def _played(episode: Attempt, journal: Journal) -> PlayedEpisode:
    """The episode, after which its session is closed, unless the journal is left to another worker, which goes on in the session."""
    try:
        return await episode.play()
    except InvalidItemError as error:
        return episode.failed(str(error))
    except EnvironmentFaultError:
        raise
    except BaseException:
        if journal.is_read:
            episode.leave()
        raise
    finally:
        await episode.close()

"""Tells rollout workers which of their draws nobody waits for any more: by the answer to the call that each holds open."""

from __future__ import annotations

from collections.abc import Collection

from gradbus.rpc import LiveCallers
from gradbus_agent.episodes.episode import AgentEpisode

_Draw = tuple[str, int]
"""Session and ordinal."""


class Withdrawals:
    """The draws that are to be cancelled. Every answer has them all until they have ended, so one that is lost is made up for."""

    def __init__(self, live: LiveCallers) -> None:
        self._live = live
        self._episodes: dict[str, AgentEpisode] = {}
        """Of such draws, by session."""

    def add(self, episode: AgentEpisode) -> None:
        """The draw for this episode is for nobody. A worker of which nothing is known draws it to its end."""
        if episode.worker:
            self._episodes[episode.session] = episode
            self._live.answer(episode.worker)

    async def next(self, worker: str, known: Collection[_Draw]) -> list[_Draw]:
        """The draws of a worker, as soon as there is one that it does not know. Holds its call, as `LiveCallers.hold`."""
        if set(told := self._of(worker)) <= set(known):
            await self._live.hold(worker)
            return self._of(worker)
        self._live.note(worker)
        return told

    def forget_ended(self) -> None:
        """Draws that have ended are not told any more."""
        self._episodes = {session: episode for session, episode in self._episodes.items() if episode.withdrawn_draw is not None}

    def _of(self, worker: str) -> list[_Draw]:
        found = [(session, episode.withdrawn_draw) for session, episode in self._episodes.items() if episode.worker == worker]
        return [(session, ordinal) for session, ordinal in found if ordinal is not None]

"""Tells rollout workers which of their draws nobody waits for any more: by the answer to the call that each holds open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gradbus.rpc import LiveCallers
from gradbus_agent.episodes.episode import AgentEpisode


class Withdrawals:
    """Sessions whose draws are to be cancelled, by worker."""

    def __init__(self, live: LiveCallers) -> None:
        self._live = live
        self._of_worker: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, episode: AgentEpisode) -> None:
        """The draw for this episode is for nobody. A worker of which nothing is known draws it to its end."""
        if episode.worker:
            self._of_worker[episode.worker].append(episode.session)
            self._live.answer(episode.worker)

    async def next(self, worker: str) -> list[str]:
        """The sessions of a worker, for which it is told as soon as there is one. Holds its call, as `LiveCallers.hold`."""
        await self._live.hold(worker)
        return self._of_worker.pop(worker, [])

    def forget(self, workers: Iterable[str]) -> None:
        """These workers are gone."""
        for worker in workers:
            self._of_worker.pop(worker, None)

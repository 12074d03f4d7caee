"""Every episode that agents may play, or play: by its run, its session, its key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from gradbus.telemetry import get_logger
from gradbus_agent.contract import RefusalError, Reply
from gradbus_agent.episodes.episode import AgentEpisode
from gradbus_agent.episodes.memory import ByteBudget
from gradbus_agent.episodes.turns import Opening
from gradbus_agent.telemetry import count_episodes

_log = get_logger(__name__)
MAX_EPISODES: Final = 16_384
"""Of one run."""
MAX_CLAIMS: Final = 64
"""Claims of one run that wait."""
_MAX_ENDED: Final = 4096
"""Keys of ended episodes that are still told so."""
_MAX_ATTEMPTS: Final = 65_536
_CALL_SECONDS: Final = 5.0
"""An offer is given to agents up to so long after its last Open: a worker that waits for one asks again at once."""
_OWED_SECONDS: Final = 60.0
"""An episode whose rollout worker has an answer to get, and does not ask for it, is closed after so long."""
_NEEDED_SECONDS: Final = 60.0
"""An agent waits no longer for the next worker while others of the run offer episodes, for which no agent has time."""


@dataclass(slots=True)
class _Run:
    """The episodes of one run."""

    episodes: int = 0
    waiting: OrderedDict[AgentEpisode, None] = field(default_factory=OrderedDict)
    """Those that no agent has, in the order in which they are claimed. Each is found at once: ten thousand may wait."""
    played: set[AgentEpisode] = field(default_factory=set)
    """Those that an agent has, and that go on."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    claims: int = 0
    """That wait."""
    requests: ByteBudget = field(default_factory=ByteBudget)
    claimed: float = field(default_factory=time.monotonic)
    """When an agent took an episode last; before the first time, when the run offered its first one."""


class Registry:
    """The episodes of all runs."""

    def __init__(self, on_abandoned: Callable[[AgentEpisode], None] = lambda _: None) -> None:
        """`on_abandoned` is called for an episode whose rollout worker draws a turn that nobody waits for."""
        self._on_abandoned = on_abandoned
        self._runs: dict[str, _Run] = {}
        self._sessions: dict[str, AgentEpisode] = {}
        self._of_episode: dict[tuple[str, str, str], AgentEpisode] = {}
        self._attempts: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        """The newest attempt of each episode, whether or not it is still open."""
        self._keys: dict[bytes, AgentEpisode] = {}
        self._ended: OrderedDict[bytes, AgentEpisode] = OrderedDict()
        self._stops = False

    # The rollout worker

    def open(self, opening: Opening, worker: str = "", *, resume: bool = False) -> AgentEpisode | Reply:
        """The episode of an opening: that of an equal one before, or a new offer, which closes an older attempt's. Or why there is none.

        With `resume` nothing is offered. `worker` plays it from now on.
        """
        episode = self._opened(opening, resume=resume)
        if isinstance(episode, AgentEpisode):
            episode.worker, episode.lost = worker, None
            if episode.withdrawn_draw is not None:  # the worker before may be dead
                self._on_abandoned(episode)
        return episode

    def _opened(self, opening: Opening, *, resume: bool) -> AgentEpisode | Reply:
        newest = self._attempts.get(opening.key, -1)
        if opening.attempt < newest:
            return Reply.error(f"attempt {opening.attempt} of this episode is older than attempt {newest}; give it up")
        known = self._of_episode.get(opening.key)
        if known is not None and opening.attempt == newest:
            if known.opening != opening:
                return Reply.error("this attempt was opened with another item; a repeated request must equal the first")
            known.heard = time.monotonic()
            self._run(known).changed.set()
            return known
        if resume:
            return Reply("unknown_session", "the session of this attempt is not open any more; begin another attempt")
        if known is not None:
            self.close(known, "its episode is played in another attempt")
        if opening.run_id in self._runs and self._runs[opening.run_id].episodes >= MAX_EPISODES:
            return Reply.away(f"the run has {MAX_EPISODES} episodes, as many as it may; use fewer slots or workers")
        return self._offer(opening)

    def of_session(self, run_id: str, session: str) -> AgentEpisode | None:
        """The episode of a session, for which its rollout worker calls."""
        found = self._sessions.get(session)
        if found is None or found.opening.run_id != run_id:
            return None
        found.lost = None  # its connection had ended, and it lives
        return found

    def close(self, episode: AgentEpisode, reason: str) -> None:
        """Forgets an episode; its key is of no use any more."""
        if self._sessions.pop(episode.session, None) is None:
            return
        del self._of_episode[episode.opening.key]
        episode.forget(reason)
        run = self._run(episode)
        run.episodes -= 1
        run.waiting.pop(episode, None)
        count_episodes(-1)

    def lose(self, workers: Collection[str]) -> None:
        """These workers are gone. What an agent plays waits for another worker if the episode has a journal; all else is closed."""
        if not workers:
            return
        lost = [episode for episode in self._sessions.values() if episode.worker in workers and episode.lost is None]
        closed = [episode for episode in lost if not (episode.opening.is_shared and episode.is_claimed)]
        for episode in lost:
            episode.lost = time.monotonic()
        for episode in closed:
            self.close(episode, "its rollout worker is gone")
        if lost:
            _log.info("worker_gone", episodes=len(lost), waiting=len(lost) - len(closed))

    def unclaimed_seconds(self, run_id: str) -> float:
        """How long no agent has claimed an episode of the run."""
        run = self._runs.get(run_id)
        return 0.0 if run is None else time.monotonic() - run.claimed

    @property
    def addresses(self) -> set[str]:
        """Of the agents of all episodes."""
        return {episode.opening.agent for episode in self._sessions.values()}

    def crowd(self, run_id: str) -> tuple[int, int]:
        """How many episodes of the run are played, and how many wait for an agent."""
        run = self._runs.get(run_id)
        return (0, 0) if run is None else (len(run.played), len(run.waiting))

    def close_idle(self, seconds: float) -> None:
        """Closes episodes that no rollout worker asks for, and forgets runs without episodes.

        A worker that draws may say nothing for so many seconds, and an episode with a journal may wait for its next worker. Any other
        worker waits for an answer in a call, or asks again at once.
        """
        is_needed = _Needed(self._runs)
        for episode in list(self._sessions.values()):
            if _is_idle(episode, is_needed, seconds):
                _log.info("episode_idle", run_id=episode.opening.run_id, episode=episode.opening.episode_id)
                self.close(episode, "its rollout worker is gone")
        for run_id in [name for name, run in self._runs.items() if not run.episodes and not run.claims]:
            del self._runs[run_id]

    def close_all(self) -> None:
        """Closes every episode, and answers the claims that wait: an agent must not take the end of a run for a fault."""
        self._stops = True
        for episode in list(self._sessions.values()):
            self.close(episode, "the agent service stops")
        for run in self._runs.values():
            run.changed.set()

    # The agent

    async def claim(self, run_id: str, capacity: int, seconds: float) -> list[tuple[AgentEpisode, str]]:
        """Up to `capacity` episodes of the run with their keys; none after so many seconds, or if the service stops.

        Raises RefusalError if too many wait.
        """
        run = self._runs.setdefault(run_id, _Run())
        if run.claims >= MAX_CLAIMS:
            message = f"{MAX_CLAIMS} claims of this run wait, as many as may; claim several episodes at a time by capacity"
            raise RefusalError(429, "too_many_claims", message, retry_after=5)
        run.claims += 1
        try:
            async with asyncio.timeout(seconds):
                while not (taken := _taken(run, capacity)) and not self._stops:
                    run.changed.clear()
                    await run.changed.wait()
        except TimeoutError:
            return []
        finally:
            run.claims -= 1
        return [(episode, self.give(episode)) for episode in taken]

    def give(self, episode: AgentEpisode) -> str:
        """Makes the key of an episode's agent, which then has it."""
        key = secrets.token_urlsafe(32)
        self._keys.pop(episode.key_hash, None)
        episode.claim(_hash(key))
        self._keys[episode.key_hash] = episode
        run = self._run(episode)
        run.claimed = time.monotonic()
        run.played.add(episode)
        return key

    def take_back(self, episode: AgentEpisode) -> None:
        """Its agent did not get it: the key is of no use, and another agent may claim the episode."""
        self._keys.pop(episode.key_hash, None)
        self._run(episode).played.discard(episode)
        episode.key_hash = b""
        if episode.opening.agent == "pull" and not episode.over:
            run = self._run(episode)
            run.waiting[episode] = None
            run.waiting.move_to_end(episode, last=False)
            run.changed.set()

    def of_key(self, key: str) -> AgentEpisode:
        """The episode of a key, also if it is over. Raises RefusalError for a key of none."""
        hashed = _hash(key)
        found = self._keys.get(hashed) or self._ended.get(hashed)
        if found is None or not hmac.compare_digest(found.key_hash, hashed):
            message = (
                "this is the key of no episode; use the api_key that came with the episode. If this is it, the agent service was started "
                "again, or the episode has long been over; claim another one"
            )
            raise RefusalError(401, "invalid_api_key", message)
        return found

    def _offer(self, opening: Opening) -> AgentEpisode:
        run = self._runs.setdefault(opening.run_id, _Run())
        episode = AgentEpisode(opening, secrets.token_hex(16), run.requests)
        episode.on_over, episode.on_abandoned = self._ends, self._on_abandoned
        self._sessions[episode.session] = episode
        self._of_episode[opening.key] = episode
        self._attempts[opening.key] = opening.attempt
        self._attempts.move_to_end(opening.key)
        if len(self._attempts) > _MAX_ATTEMPTS:
            self._attempts.popitem(last=False)
        run.episodes += 1
        if opening.agent == "pull":
            run.waiting[episode] = None
            run.changed.set()
        count_episodes(1)
        return episode

    def _run(self, episode: AgentEpisode) -> _Run:
        return self._runs.setdefault(episode.opening.run_id, _Run())

    def _ends(self, episode: AgentEpisode) -> None:
        if self._keys.pop(episode.key_hash, None) is None:
            return
        self._run(episode).played.discard(episode)
        self._ended[episode.key_hash] = episode
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)


class _Needed:
    """Which runs have offers whose rollout workers wait for an agent. A run's offers are read once, however many episodes ask."""

    def __init__(self, runs: Mapping[str, _Run]) -> None:
        self._runs = runs
        self._known: dict[str, bool] = {}

    def __call__(self, run_id: str) -> bool:
        if run_id not in self._known:
            run = self._runs.get(run_id)
            self._known[run_id] = run is not None and any(offer.is_heard(_CALL_SECONDS) for offer in run.waiting)
        return self._known[run_id]


def _is_idle(episode: AgentEpisode, is_needed: Callable[[str], bool], seconds: float) -> bool:
    if episode.lost is not None:
        patience = min(seconds, _NEEDED_SECONDS) if is_needed(episode.opening.run_id) else seconds
        return time.monotonic() - episode.lost >= patience
    return not episode.is_heard(seconds if episode.is_drawing else min(seconds, _OWED_SECONDS))


def _taken(run: _Run, capacity: int) -> list[AgentEpisode]:
    """The first offers whose rollout workers wait for an agent; those of workers that are gone stay until they are closed."""
    taken = list(islice((one for one in run.waiting if one.is_heard(_CALL_SECONDS)), capacity))
    for episode in taken:
        del run.waiting[episode]
    return taken


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()

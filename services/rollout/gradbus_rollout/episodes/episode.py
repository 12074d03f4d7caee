"""An episode before and after it is played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradbus.spec import EnvironmentSpec, RunSpec
from gradbus.v1.episode_pb2 import END_REASON_CONTEXT, END_REASON_LENGTH, END_REASON_MAX_TOKENS, EndReason
from gradbus.v1.reward_pb2 import SampleReward
from gradbus_rollout.episodes.journal import JournalPlace
from gradbus_rollout.episodes.transcript import TokenSequence, Transcript

PAUSE_SECONDS: Final = 0.25
"""Before an episode's second attempt, and before the turns of a lost session are repeated."""
LOST_SESSIONS: Final = 16
"""Of an episode: perhaps it is what ends its service."""
_CUT_OFF: Final = frozenset({END_REASON_LENGTH, END_REASON_MAX_TOKENS, END_REASON_CONTEXT})


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """A sample of a group, before it is played."""

    episode_id: str
    prompt_ids: tuple[int, ...]
    """`[P]`, of the dataset row; the environment may begin with another conversation."""
    item: str
    """The dataset row as a JSON object."""
    world_seed: int
    seed: int
    greedy: bool
    traceparent: str
    player: str
    """Unique to this play: another worker may play the same episode at the same time."""
    place: JournalPlace


@dataclass(slots=True)
class LostSessions:
    """Sessions of an episode that its service lost, in all attempts."""

    count: int = 0

    @property
    def next_is_last(self) -> bool:
        """Whether one more is too many."""
        return self.count + 1 >= LOST_SESSIONS


@dataclass(slots=True)
class PlayedEpisode:
    """An episode that is over."""

    prompt_ids: tuple[int, ...]
    """`[P]`, with which it began."""
    transcript: Transcript
    end: EndReason
    outcome: SampleReward
    attempt: int = 0

    def sequences_after(self, prompt_ids: tuple[int, ...]) -> tuple[TokenSequence, list[TokenSequence]]:
        """Its sequence after the group's prompt, which is empty if it began with another one, and all others."""
        sequences = self.transcript.sequences
        if sequences and sequences[0].prompt_ids == prompt_ids:
            return sequences[0], sequences[1:]
        return TokenSequence(prompt_ids), sequences

    @property
    def is_cut_off(self) -> bool:
        """Whether it ran out of tokens. A limit on turns is a rule of its world."""
        return self.end in _CUT_OFF


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """What ends an episode."""

    environment: EnvironmentSpec
    max_new_tokens: int
    """Of a turn."""
    max_drawn_tokens: int
    context_length: int
    has_scorer: bool
    """Whether a scorer's reward is added, so that the environment need not give one."""

    @property
    def is_agents(self) -> bool:
        """Whether an agent asks for the turns, in any order and in many conversations."""
        return self.environment.agent is not None

    @classmethod
    def of(cls, spec: RunSpec, environment: EnvironmentSpec, context_length: int) -> EpisodeLimits:
        """Those of a run."""
        return cls(environment, spec.rollout.max_new_tokens, spec.max_drawn_tokens, context_length, spec.has_scorer)

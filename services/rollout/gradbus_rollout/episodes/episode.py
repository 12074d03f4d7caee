"""An episode before and after it is played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradbus.spec import EnvironmentSpec, RunSpec
from gradbus.v1.episode_pb2 import END_REASON_CONTEXT, END_REASON_LENGTH, END_REASON_MAX_TOKENS, EndReason
from gradbus.v1.reward_pb2 import SampleReward
from gradbus_rollout.episodes.transcript import Transcript

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


@dataclass(slots=True)
class PlayedEpisode:
    """An episode that is over."""

    prompt_ids: tuple[int, ...]
    transcript: Transcript
    end: EndReason
    outcome: SampleReward
    attempt: int = 0

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

    @classmethod
    def of(cls, spec: RunSpec, environment: EnvironmentSpec, context_length: int) -> EpisodeLimits:
        """Those of a run."""
        return cls(environment, spec.rollout.max_new_tokens, spec.max_drawn_tokens, context_length, spec.has_scorer)

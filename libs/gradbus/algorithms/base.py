"""What an algorithm reads of a scored group, and its verdict on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

MAX_REWARD: Final = 1e6
"""Bound of |reward|: sums of squares stay finite in float32, and so does an advantage without division by the deviation."""


SHADOW: Final = "shadow."
"""How the names of components begin that a shadow scorer gave. No algorithm reads them."""


class ScoredSample(Protocol):
    """A scorer's answer for one sample; `gradbus.v1.reward_pb2.SampleReward` is one."""

    @property
    def status(self) -> int:
        """A `RewardStatus`; everything but `ok` masks the sample."""
        ...

    @property
    def reward(self) -> float:
        """A number within ±MAX_REWARD; any other masks the sample."""
        ...

    @property
    def components(self) -> Mapping[str, float]:
        """The named parts of the reward; may be empty."""
        ...


class TokenAdvantage(NamedTuple):
    """The advantage of a sample's tokens from one on, up to that of the next turn."""

    start: int
    advantage: float


class SampleMarks(NamedTuple):
    """What only some algorithms look at in a sample; others leave every sample unmarked."""

    best: bool = False
    """Its reward is the largest of its group, and above 0: a likelihood term imitates it."""
    cut_off: bool = False
    """It ended at the limit of its tokens: a critic's value counts for the rest."""


UNMARKED: Final = SampleMarks()


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """The verdict on a group and the advantages of its G samples. Sequences are `[G]`, in the order of the samples."""

    valid: tuple[bool, ...]
    """Whether the sample is trained; a masked sample has weight 0."""
    advantages: tuple[float, ...]
    """0.0 for masked samples."""
    mean: float
    """Mean reward of the valid samples as the estimator reads them; 0.0 when there are none."""
    std: float
    """Standard deviation of their rewards (ddof 1); 0.0 when there are fewer than two."""
    reason: str
    """Why the group is filtered; empty when it is trained."""
    by_turn: tuple[tuple[TokenAdvantage, ...], ...] = ()
    """Of each sample those of its turns, in order of tokens, where turns have advantages of their own; otherwise empty."""

    @property
    def filtered(self) -> bool:
        """Whether the group is left out of the step's loss and of its token count."""
        return bool(self.reason)

"""The interface between a run and its algorithm: from a group's rewards to the coefficients of the loss."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

MAX_REWARD: Final = 1e6
"""Bound of |reward|: sums of squares stay finite in float32, and so does an advantage without division by the deviation."""


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


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """The verdict on a group and the advantages of its G samples. Sequences are `[G]`, in the order of the samples."""

    valid: tuple[bool, ...]
    """Whether the sample is trained; a masked sample has weight 0."""
    advantages: tuple[float, ...]
    """0.0 for masked samples."""
    mean: float
    """Mean reward of the valid samples; 0.0 when there are none."""
    std: float
    """Standard deviation of their rewards (ddof 1); 0.0 when there are fewer than two."""
    reason: str
    """Why the group is filtered; empty when it is trained."""

    @property
    def filtered(self) -> bool:
        """Whether the group is left out of the step's loss and of its token count."""
        return bool(self.reason)


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm needs besides samples and rewards."""

    reference: bool
    """Log-probabilities of the base model."""
    values: bool
    """A critic's value of each token. No learner has a critic yet: `algorithm_faults` refuses such an algorithm."""
    valid_samples: int
    """Fewest valid samples of a group from which it can be trained; `rollout.group_size` may not be less."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The loss as plain values; `gradbus_kernels.operators.PolicySettings` and `token_weights` are made from these."""

    clip_low: float
    clip_high: float
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    importance: Literal["behaviour", "decoupled"]
    kl: float
    """Coefficient of the KL term."""
    entropy: float
    """Coefficient of the entropy bonus."""
    aggregate: Literal["token", "sequence"]
    """Whether tokens or sequences have equal weight in the step's mean."""


class Algorithm(Protocol):
    """A training algorithm with the settings of one run. Pure: every answer is a function of the settings and the arguments."""

    @property
    def needs(self) -> Needs:
        """What the run must provide."""
        ...

    @property
    def loss(self) -> LossSettings:
        """The settings of the loss."""
        ...

    @property
    def metric_names(self) -> Sequence[str]:
        """Metrics of the loss that a step reports; see `StepMetrics.named` of the trainer."""
        ...

    def compute_advantages(self, rewards: Sequence[ScoredSample], truncated: Sequence[bool]) -> GroupAdvantages:
        """The verdict and the advantages of one group.

        `truncated` says per sample whether it was cut off at `max_new_tokens`. Raises ValueError when the sequences differ in length.
        """
        ...

    def token_advantages(self, group: GroupAdvantages, lengths: Sequence[int]) -> list[array[float]]:
        """Advantages by response token: for each sample an array of typecode "f" (float32), `[lengths[i]]`."""
        ...

"""Group-relative advantages (GRPO, Shao et al. 2024, arXiv:2402.03300, section 4.1).

A failure is not a reward of 0: what could not be judged leaves mean, deviation and token count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gradbus.spec import AlgorithmSpec
from gradbus.v1 import reward_pb2

STD_EPSILON = 1e-4


class ScoredSample(Protocol):
    """What a scorer said of one sample; `gradbus.v1.reward_pb2.SampleReward` is one."""

    @property
    def status(self) -> int:
        """A `RewardStatus`; everything but `ok` masks the sample."""
        ...

    @property
    def reward(self) -> float:
        """Any finite number; a number that is not finite masks the sample."""
        ...


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """What a group is worth to the trainer. Sequences are in the order of the group's samples."""

    valid: tuple[bool, ...]
    """Whether the sample is trained; a masked one has weight 0."""
    advantages: tuple[float, ...]
    """0.0 for masked samples, exactly 0.0 for all when the valid rewards are equal."""
    mean: float
    """Mean reward of the valid samples; 0.0 when there are none."""
    std: float
    """Their standard deviation (ddof 1); 0.0 when there are fewer than two."""
    reason: str
    """Why the group is filtered; empty when it is trained."""

    @property
    def filtered(self) -> bool:
        """Whether the group leaves numerator and denominator of the step."""
        return bool(self.reason)


def compute_advantages(rewards: Sequence[ScoredSample], truncated: Sequence[bool], algorithm: AlgorithmSpec) -> GroupAdvantages:
    """Which samples of a group count, and their advantages `(r - mean) / (std + 1e-4)`.

    `truncated` says per sample whether it was cut off at max_new_tokens; with `truncated = "mask"` such samples
    are masked. The result of a sample depends on the set of valid rewards, never on their order.
    Raises ValueError when the two sequences differ in length.
    """
    masks_truncated = algorithm.truncated == "mask"
    valid = tuple(
        scored.status == reward_pb2.REWARD_STATUS_OK and math.isfinite(scored.reward) and not (cut and masks_truncated)
        for scored, cut in zip(rewards, truncated, strict=True)
    )
    values = [scored.reward for scored, counts in zip(rewards, valid, strict=True) if counts]
    mean, std = _mean_and_std(values)
    scale = std + STD_EPSILON if algorithm.normalize_std else 1.0
    # Equal rewards are told by max == min: (r - mean) need not vanish in floating point.
    has_signal = bool(values) and max(values) > min(values)
    advantages = tuple(
        (scored.reward - mean) / scale if counts and has_signal else 0.0 for scored, counts in zip(rewards, valid, strict=True)
    )
    return GroupAdvantages(valid, advantages, mean, std, _reason(len(values), len(rewards), has_signal, algorithm))


def _mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1). `fsum` rounds once, so the order of values does not matter."""
    if not values:
        return 0.0, 0.0
    if max(values) == min(values):
        return values[0], 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _reason(valid: int, total: int, has_signal: bool, algorithm: AlgorithmSpec) -> str:
    if valid < 2:
        return f"{valid} of {total} samples are valid; an advantage needs two"
    if not has_signal and algorithm.filter == "zero_variance":
        return f"all {valid} valid rewards are equal"
    return ""

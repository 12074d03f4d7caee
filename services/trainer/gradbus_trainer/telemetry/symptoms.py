"""Symptoms of a run that stops learning: each takes the values of a metric step by step, and says of each whether it looks bad or good."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final

REWARD_WINDOW: Final = 20
"""Steps of a mean: rows differ in difficulty, and 20 steps have hundreds of them."""
REWARD_STEPS: Final = 40
"""Least steps: two windows without a step in common."""
REWARD_SHARE: Final = 0.5
"""Of the best mean: training wanders by a tenth, and a policy that has lost half of what it got is not about to find it again."""
REWARD_RECOVERED: Final = 0.75
REWARD_GROUPS: Final = 16
"""Least groups of a mean."""
REWARD_ERRORS: Final = 6.0
"""Standard errors of the fall: the best of hundreds of windows is a lucky one, the worst an unlucky one. A reward that is rarely given, or
to few groups, halves by chance alone."""
ENTROPY_SPAN: Final = 10
"""Steps whose mean entropy is what the run began with; what falls or rises does so from so many steps to the next as many."""
ENTROPY_MOST: Final = 1.0
"""Nats a token of a pretrained model at most. Random weights have ln(vocabulary), and lose nearly all of it before they know anything."""
ENTROPY_SHARE: Final = 0.1
"""Of the start. A pretrained model that learns well loses half to two thirds."""
ENTROPY_NATS: Final = 0.01
"""A token: all answers to a prompt are then the same but for one token in hundreds."""
ENTROPY_RECOVERED: Final = 2.0
"""Times either threshold."""
REWARDS_DIFFER: Final = 0.5
"""Part of the largest standard deviation in a step. Where 95 % of the answers are right it is below, where 90 % are above."""
WINDOW: Final = 50
"""Steps whose median is the usual value of a metric."""
LEAST: Final = 10
"""Steps before which no value is usual."""
SPIKE_RECOVERED: Final = 0.25
"""Of either threshold."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What a step says: bad, good, or neither, as between a threshold and that of the recovery."""

    is_bad: bool
    is_good: bool
    seen: str
    """The value in words."""


@dataclass(frozen=True, slots=True)
class StepRewards:
    """Of the samples of a step that could be scored."""

    mean: float
    std: float
    samples: int


class RewardLevel:
    """The mean reward of the newest steps beside that of the best steps in a row. Only for rewards whose best mean is above 0.

    The best steps may be fewer at the beginning of the run: a policy may be lost at once, and its first step is the base model's.
    """

    def __init__(self, group_size: int) -> None:
        """`group_size`: the samples of a group whose rewards are counted."""
        self._group_size = group_size
        self._window: deque[StepRewards] = deque(maxlen=REWARD_WINDOW)
        self._steps = 0
        self._bound = -math.inf
        """The best window is that of the highest lower bound of the mean: few groups are easily lucky."""
        self._best, self._variance, self._groups = 0.0, 0.0, 1.0
        """Of the best window: the mean reward, the variance of its samples, and its groups."""

    def sign(self, rewards: StepRewards | None) -> Sign | None:
        """Adds the rewards of a step, if it has any."""
        if rewards is None:
            return None
        self._window.append(rewards)
        self._steps += 1
        groups = sum(step.samples for step in self._window) / self._group_size
        if groups < REWARD_GROUPS:
            return None
        mean = statistics.fmean(step.mean for step in self._window)
        variance = statistics.fmean(step.std**2 + (step.mean - mean) ** 2 for step in self._window)
        bound = mean - 2.0 * math.sqrt(variance / groups)
        if bound > self._bound:
            self._bound, self._best, self._variance, self._groups = bound, mean, variance, groups
        fall = self._best - mean
        # As if the windows had one mean in truth, and a group were one sample: its prompt may decide all its rewards.
        pooled = (self._variance + variance) / 2 + (fall / 2) ** 2
        error = math.sqrt(pooled * (1 / self._groups + 1 / groups))
        is_lower = self._best > 0.0 and mean < REWARD_SHARE * self._best and fall > REWARD_ERRORS * error
        seen = f"the mean reward fell from {self._best:.3g} to {mean:.3g} over the last {REWARD_WINDOW} steps"
        return Sign(is_lower and self._steps >= REWARD_STEPS, mean >= REWARD_RECOVERED * self._best, seen)


class EntropyLevel:
    """The entropy beside that of the first steps: low and falling, or next to none, while the rewards say that there is more to learn.

    A run that learns loses entropy too, and one that has solved its task needs none. So neither a step counts at which the reward rises,
    nor one of a run whose rewards hardly differ any more.
    """

    def __init__(self) -> None:
        self._first: list[float] = []
        self._entropies: deque[float] = deque(maxlen=2 * ENTROPY_SPAN)
        self._means: deque[float] = deque(maxlen=2 * ENTROPY_SPAN)
        self._deviations: deque[float] = deque(maxlen=ENTROPY_SPAN)
        self._widest = 0.0

    def sign(self, entropy: float, rewards: StepRewards | None) -> Sign | None:
        """Adds the entropy of a step, in nats a token, and its rewards."""
        if rewards is None:
            return None
        self._entropies.append(entropy)
        self._means.append(rewards.mean)
        self._deviations.append(rewards.std)
        if len(self._first) < ENTROPY_SPAN:
            self._first.append(min(entropy, ENTROPY_MOST))
            return None
        deviation = statistics.fmean(self._deviations)
        self._widest = max(self._widest, deviation)
        start = statistics.fmean(self._first)
        is_low = entropy < ENTROPY_NATS or (entropy < ENTROPY_SHARE * start and _rise(self._entropies) < 0.0)
        may_learn = deviation >= REWARDS_DIFFER * self._widest and _rise(self._means) <= 0.0
        is_good = entropy >= ENTROPY_RECOVERED * max(ENTROPY_SHARE * start, ENTROPY_NATS)
        return Sign(is_low and may_learn, is_good, f"the entropy is {entropy:.2g} nats a token, {start:.2g} at the start")


def _rise(values: deque[float]) -> float:
    """From the older half of the values to the newer."""
    ordered = list(values)
    return sum(ordered[len(ordered) // 2 :]) - sum(ordered[: len(ordered) // 2])


class Spikes:
    """A value beside the median of the newest ones. Bad values do not join these, so that they never become usual."""

    def __init__(self, name: str, factor: float, floor: float) -> None:
        """A value is bad above `factor` times the median, and above `floor`."""
        self._name, self._factor, self._floor = name, factor, floor
        self._window: deque[float] = deque(maxlen=WINDOW)

    def sign(self, value: float) -> Sign | None:
        """Adds the value of a step."""
        if len(self._window) < LEAST:
            self._window.append(value)
            return None
        usual = statistics.median(self._window)
        threshold = max(self._factor * usual, self._floor)
        if value <= threshold:
            self._window.append(value)
        return Sign(value > threshold, value < SPIKE_RECOVERED * threshold, f"{self._name} is {value:.3g}, usually {usual:.2g}")

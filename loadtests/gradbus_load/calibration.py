"""Simulated hardware: seconds per token and response lengths, as functions of the seed alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

P99_OVER_MEDIAN: Final = 10.0
SIGMA: Final = math.log(P99_OVER_MEDIAN) / NormalDist().inv_cdf(0.99)
"""Sigma of the lognormal distribution whose 99th percentile is ten medians."""
_SEED_BITS: Final = 63
_MULTIPLIER: Final = 0x9E3779B97F4A7C15  # Weyl's sequence by the golden ratio (Steele et al. 2014, SplitMix64)


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """An engine that decodes all its slots in parallel, one token per step."""

    step_seconds: float = 0.001
    """Seconds of a decode step, for any number of used slots."""
    prefill_seconds: float = 0.0
    """Seconds per prompt token, for each sample."""
    median_tokens: float = 32.0
    """Median response length, before truncation at the run's `max_new_tokens`."""

    def seconds(self, prompt_tokens: int, tokens: int) -> float:
        """Seconds from the start in a slot to the last token."""
        return prompt_tokens * self.prefill_seconds + tokens * self.step_seconds


@dataclass(frozen=True, slots=True)
class LearnerTiming:
    """A learner with a constant step time."""

    step_seconds: float = 0.0


def response_tokens(seed: int, median: float, most: int) -> int:
    """Tokens of the sample of `seed`: lognormal around `median`, at least 1 and at most `most`."""
    share = (scrambled(seed) + 0.5) / 2**_SEED_BITS
    length = median * math.exp(SIGMA * NormalDist().inv_cdf(min(max(share, 1e-9), 1 - 1e-9)))
    return max(1, min(most, round(length)))


def scrambled(value: int) -> int:
    """A 63-bit hash of `value` (SplitMix64)."""
    mixed = (value * _MULTIPLIER) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) >> 1


def kept_full(seconds: Sequence[float], slots: int) -> float:
    """Engine seconds of these samples when the engine is always full."""
    return math.fsum(seconds) / slots

"""The KL in the reward of a step whose coefficient is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradbus_trainer.step.batch import TrainSample


def with_kl_in_reward(samples: Sequence[TrainSample], coefficient: float) -> Sequence[TrainSample]:
    """The samples, less coefficient · (sum of log mu - log pi_ref from a token on) of each advantage; in float64.

    Tokens that the policy did not choose add nothing to the sum. With the spec's coefficient it has the bits of
    `gradbus.algorithms.reward_kl.returns_to_go` for rewards that float32 holds.
    """
    found = []
    for sample in samples:
        apart = np.where(sample.trainable, sample.behaviour_logprobs.astype(np.float64) - _reference(sample), 0.0)
        later = np.cumsum(apart[::-1])[::-1]
        found.append(replace(sample, advantages=(sample.advantages - coefficient * later).astype(np.float32)))
    return found


def _reference(sample: TrainSample) -> np.ndarray:
    if sample.reference_logprobs is None:
        raise ValueError("a sample of a run with a KL in its reward has no reference log-probabilities; judge its group again")
    return sample.reference_logprobs

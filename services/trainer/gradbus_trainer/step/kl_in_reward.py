"""The KL in the reward of a step whose coefficient is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradbus_trainer.step.batch import TrainSample, by_sample


def with_kl_in_reward(samples: Sequence[TrainSample], coefficient: float) -> Sequence[TrainSample]:
    """The samples, less coefficient · (sum of log mu - log pi_ref from a token on) of each advantage; in float64.

    Tokens that the policy did not choose add nothing to the sum; a sample's sequences are one after the other. With the spec's
    coefficient it has the bits of `gradbus.algorithms.reward_kl.returns_to_go` for rewards that float32 holds.
    """
    found: list[TrainSample] = []
    for rows in by_sample(samples):
        apart = np.concatenate([np.where(row.trainable, row.behaviour_logprobs.astype(np.float64) - _reference(row), 0.0) for row in rows])
        later = np.split(np.cumsum(apart[::-1])[::-1], np.cumsum([len(row.token_ids) for row in rows])[:-1])
        found += [
            replace(row, advantages=(row.advantages - coefficient * part).astype(np.float32)) for row, part in zip(rows, later, strict=True)
        ]
    return found


def _reference(sample: TrainSample) -> np.ndarray:
    if sample.reference_logprobs is None:
        raise ValueError("a sample of a run with a KL in its reward has no reference log-probabilities; judge its group again")
    return sample.reference_logprobs

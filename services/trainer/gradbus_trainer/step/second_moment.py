"""The bound of a step's second moment: the tokens whose ratio has moved most do not move the policy (M2PO, arXiv:2510.01161)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.dropped_tokens import Dropped, without_gain


def within_second_moment(batch: Batch, limit: float | None) -> Dropped:
    """Drops the trainable tokens with the largest m = (log pi0 / mu)², until the mean of m over the others is below `limit`.

    The samples must have their `proximal_logprobs`, log pi0. Numbers are float64 and those of the whole step, so its cut into micro-batches
    changes nothing; tokens of equal m are dropped together, so the order of the samples changes nothing either. Without a limit
    nothing is dropped. Raises ValueError when a sample lacks them.
    """
    if limit is None:
        return Dropped(batch, 0.0)
    moments = [_moments(sample) for sample in batch.samples]
    trained = np.concatenate([part[sample.trainable] for part, sample in zip(moments, batch.samples, strict=True)])
    bound = _first_dropped(trained, limit)
    samples = [without_gain(sample, part >= bound) for sample, part in zip(batch.samples, moments, strict=True)]
    return Dropped(Batch(batch.step, samples), float((trained >= bound).mean()))


def _first_dropped(moments: NDArray[np.float64], limit: float) -> float:
    """The least of the moments that are dropped; infinite if none is."""
    ordered = np.sort(moments)
    means = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    kept = int((means < limit).sum())
    return float(ordered[kept]) if kept < len(ordered) else math.inf


def _moments(sample: TrainSample) -> NDArray[np.float64]:
    if sample.proximal_logprobs is None:
        raise ValueError("a sample has no log-probabilities of the policy before the step; compute them before its second moment")
    return np.square(sample.proximal_logprobs.astype(np.float64) - sample.behaviour_logprobs)

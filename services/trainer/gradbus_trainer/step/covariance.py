"""The clip of covariances: some of the tokens that lower the entropy most do not move the policy (Clip-Cov, arXiv:2505.22617)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradbus.ids import sample_seed
from gradbus.spec import CovarianceClipSpec
from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.dropped_tokens import Dropped, without_gain


def without_covarying(batch: Batch, settings: CovarianceClipSpec | None, seed: int) -> Dropped:
    """Chooses tokens by (A - mean A) · (log mu - mean log mu), means over the step's trainable tokens. Without settings, none.

    Of the tokens between `bounds` those are chosen whose keys, hashes of the run's `seed`, the step and the token's place in it, are the
    smallest: `share` of the trainable tokens, rounded down and at least one. Numbers are float64 and sums by `fsum`, of what the log
    holds alone, so neither the policy, micro-batches nor ranks have a part in the choice.
    """
    if settings is None or not batch.has_weight:
        return Dropped(batch, 0.0)
    covariances = _centred(batch, "advantages") * _centred(batch, "behaviour_logprobs")
    lower, upper = settings.bounds
    places = np.flatnonzero((covariances > lower) & (covariances < upper)).tolist()
    most = max(1, int(settings.share * len(covariances)))
    chosen = np.zeros(len(covariances), np.bool_)
    chosen[sorted(places, key=lambda place: sample_seed(seed, "covariance clip", batch.step, place))[:most]] = True
    if not chosen.any():
        return Dropped(batch, 0.0)
    ends = np.cumsum([0, *batch.trainable_counts]).tolist()
    samples = [_without(sample, chosen[start:end]) for sample, (start, end) in zip(batch.samples, pairwise(ends), strict=True)]
    return Dropped(Batch(batch.step, samples), float(chosen.mean()))


def _centred(batch: Batch, name: str) -> NDArray[np.float64]:
    """What the trainable tokens have, less its mean."""
    values = np.concatenate([getattr(sample, name)[sample.trainable] for sample in batch.samples]).astype(np.float64)
    return np.asarray(values - math.fsum(values.tolist()) / len(values))


def _without(sample: TrainSample, chosen: NDArray[np.bool_]) -> TrainSample:
    """The sample, of whose trainable tokens the chosen ones gain nothing."""
    dropped = np.zeros_like(sample.trainable)
    dropped[sample.trainable] = chosen
    return without_gain(sample, dropped)

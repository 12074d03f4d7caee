"""Whitening of a step's advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradbus.spec import Whiten
from gradbus_trainer.step.batch import TrainSample, by_sample

_LEAST_VARIANCE: Final = 1e-8


def whitened(samples: Sequence[TrainSample], by: Whiten) -> Sequence[TrainSample]:
    """The samples with advantages of mean 0 and variance 1 (REINFORCE++, arXiv:2501.03262, equation 8).

    Mean and variance (ddof 0, at least 1e-8) are those over the trainable tokens, or over the samples that have one, by the mean
    advantage of its trainable tokens. Sums are by `fsum`: the order of the samples does not change a bit.
    """
    if by == "none":
        return samples
    trained = [part for rows in by_sample(samples) if len(part := _trained(rows))]
    if not trained:
        return samples
    values = np.concatenate(trained) if by == "tokens" else np.array([math.fsum(part) / len(part) for part in trained])
    mean = _mean(values)
    deviation = math.sqrt(max(_mean((values - mean) ** 2), _LEAST_VARIANCE))
    return [replace(sample, advantages=((sample.advantages - mean) / deviation).astype(np.float32)) for sample in samples]


def _trained(rows: Sequence[TrainSample]) -> NDArray[np.float64]:
    """The advantages of a sample's trainable tokens."""
    return np.concatenate([row.advantages[row.trainable] for row in rows]).astype(np.float64)


def _mean(values: NDArray[np.float64]) -> float:
    return math.fsum(values.tolist()) / len(values)

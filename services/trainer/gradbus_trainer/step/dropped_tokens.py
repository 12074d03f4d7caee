"""A step whose policy some of the tokens do not move."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradbus_trainer.step.batch import Batch, TrainSample


@dataclass(frozen=True, slots=True)
class Dropped:
    """A step without the gains of the tokens that were dropped."""

    batch: Batch
    """Dropped tokens have the advantage 0. They stay in the denominator of the mean, and a KL or an entropy bonus counts them."""
    share: float
    """Of the trainable tokens, that of the dropped ones."""


def without_gain(sample: TrainSample, dropped: NDArray[np.bool_]) -> TrainSample:
    """The sample, of which the tokens `dropped` `[T]` gain nothing."""
    return replace(sample, advantages=np.where(dropped, np.float32(0.0), sample.advantages)) if dropped.any() else sample

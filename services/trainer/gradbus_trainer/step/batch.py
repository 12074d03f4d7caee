"""The batch of one optimiser step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradbus_kernels.models.packing import split_by_tokens


@dataclass(slots=True)
class TrainSample:
    """A sample that is trained: P prompt tokens and T response tokens. Never changed, and not frozen only because a step makes many."""

    prompt_ids: NDArray[np.int32]
    """[P]."""
    token_ids: NDArray[np.int32]
    """[T]."""
    behaviour_logprobs: NDArray[np.float32]
    """[T], at the rollout's temperature."""
    trainable: NDArray[np.bool_]
    """[T]; False for tokens that the policy did not choose (a tool's output)."""
    advantages: NDArray[np.float32]
    """[T]; the algorithm's, by token."""
    reference_logprobs: NDArray[np.float32] | None = None
    """[T], at the rollout's temperature; only with a KL term."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of step `step`, in order of group index and n. Filtered, dropped and masked samples are not among them."""

    step: int
    samples: Sequence[TrainSample]

    @property
    def trainable_counts(self) -> list[int]:
        """Trainable tokens of each sample."""
        return [int(np.count_nonzero(sample.trainable)) for sample in self.samples]

    @property
    def has_weight(self) -> bool:
        """Whether there is anything to learn from."""
        return any(sample.trainable.any() for sample in self.samples)


def micro_batches(batch: Batch, budget: int) -> list[Sequence[TrainSample]]:
    """The batch in pieces of at most `budget` tokens; a longer sample goes alone. Depends on the rows alone."""
    return list(split_by_tokens(batch.samples, budget))

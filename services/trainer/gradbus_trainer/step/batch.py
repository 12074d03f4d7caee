"""The batch of one optimiser step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradbus.algorithms import UNMARKED, SampleMarks
from gradbus_kernels.models.packing import split_by_tokens


@dataclass(slots=True)
class TrainSample:
    """A sample that is trained: P prompt tokens and T response tokens, at least one of each.

    Never changed, and not frozen only because a step makes many.
    """

    prompt_ids: NDArray[np.int32]
    """[P]."""
    token_ids: NDArray[np.int32]
    """[T]."""
    behaviour_logprobs: NDArray[np.float32]
    """[T], at the rollout's temperature."""
    trainable: NDArray[np.bool_]
    """[T]; False for tokens that the policy did not choose (a tool's output)."""
    advantages: NDArray[np.float32]
    """[T]; the algorithm's, by token; before a critic has made them the sum of the rewards from each token on."""
    reference_logprobs: NDArray[np.float32] | None = None
    """[T], at the rollout's temperature; only with a KL in the loss or the reward."""
    routes: NDArray[np.int16] | None = None
    """[P + T, layers with experts, k]: each token's experts, OWN_CHOICE where they are not known; only in a run that replays routes."""
    proximal_logprobs: NDArray[np.float32] | None = None
    """[T], of the policy before the step; only within a step that reads them."""
    teacher_logprobs: NDArray[np.float32] | None = None
    """[T], at the rollout's temperature; only in a run with a teacher, whose part the advantages have already."""
    teacher_rows: tuple[NDArray[np.int32], NDArray[np.float32]] | None = None
    """The teacher's most likely tokens, [T, k], and log-probabilities of these and of all others together, [T, k + 1]; only in a run that
    trains on these rows."""
    marks: SampleMarks = UNMARKED


class TokenTotals(NamedTuple):
    """Trainable tokens of all samples of an update, by which their sums become means."""

    trainable: int
    best: int = 0
    """Those of the best samples."""


@dataclass(frozen=True)
class Batch:
    """The rows of step `step`, in order of group index and n. Filtered, dropped and masked samples are not among them."""

    step: int
    samples: Sequence[TrainSample]

    @cached_property
    def trainable_counts(self) -> Sequence[int]:
        """Trainable tokens of each sample."""
        if not self.samples:
            return []
        masks = [sample.trainable for sample in self.samples]
        owners = np.repeat(np.arange(len(masks)), list(map(len, masks)))
        counts: list[int] = np.bincount(owners[np.concatenate(masks)], minlength=len(masks)).tolist()
        return counts

    @property
    def totals(self) -> TokenTotals:
        """The trainable tokens, and those of the best samples."""
        counts = self.trainable_counts
        return TokenTotals(sum(counts), sum(count for count, sample in zip(counts, self.samples, strict=True) if sample.marks.best))

    def mean_kl(self, frozen: Literal["reference_logprobs", "teacher_logprobs"]) -> float:
        """Mean of log mu - log pi_frozen over the trainable tokens, nats; 0.0 if there are none. Samples must have these."""
        parts = [
            (sample.behaviour_logprobs.astype(np.float64) - logprobs)[sample.trainable]
            for sample in self.samples
            if (logprobs := getattr(sample, frozen)) is not None
        ]
        return float(np.concatenate(parts).mean()) if self.has_weight else 0.0

    @property
    def has_weight(self) -> bool:
        """Whether there is anything to learn from."""
        return any(self.trainable_counts)


def micro_batches(batch: Batch, budget: int, shares_prompts: bool = True, portions: int = 1) -> list[Sequence[TrainSample]]:
    """The batch in pieces of at most `budget` tokens; a longer sample goes alone. Depends on the rows alone.

    It is first cut into up to `portions` of about equally many tokens, between groups.
    """
    return [piece for portion in _portions(batch.samples, portions) for piece in split_by_tokens(portion, budget, shares_prompts)]


def prompt_groups(samples: Sequence[TrainSample]) -> list[list[TrainSample]]:
    """The groups of a batch's samples: neighbours with the same prompt."""
    return [list(group) for _, group in groupby(samples, key=lambda sample: sample.prompt_ids.tobytes())]


def _portions(samples: Sequence[TrainSample], count: int) -> list[Sequence[TrainSample]]:
    if count == 1 or not samples:
        return [samples]
    groups = prompt_groups(samples)
    sizes = [sum(len(sample.prompt_ids) + len(sample.token_ids) for sample in group) for group in groups]
    middles = np.cumsum(sizes) - np.array(sizes) / 2
    portion_of = iter((middles * count / sum(sizes)).astype(int).tolist())
    return [list(chain.from_iterable(portion)) for _, portion in groupby(groups, key=lambda _: next(portion_of))]

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
from gradbus.spec import RunSpec
from gradbus_kernels.models.packing import split_by_tokens
from gradbus_kernels.operators import token_weights

Rows = tuple[NDArray[np.int32], NDArray[np.float32]]
"""A model's most likely tokens, [T, k], and log-probabilities of these and of all others together, [T, k + 1]."""


class Origin(NamedTuple):
    """Whose sequence a row is, in a group that has a sample of several sequences."""

    group: int
    n: int


@dataclass(slots=True)
class TrainSample:
    """A sample that is trained, or one of its sequences: P prompt tokens and T response tokens, at least one of each.

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
    teacher_rows: Rows | None = None
    """Those of the teacher; only in a run that trains on these rows."""
    behaviour_rows: Rows | None = None
    """Those of the version that sampled; only in a run with score centring."""
    marks: SampleMarks = UNMARKED
    origin: Origin | None = None
    """None: the row is a whole sample."""


class TokenTotals(NamedTuple):
    """Trainable tokens of all samples of an update, by which their sums become means."""

    trainable: int
    best: int = 0
    """Those of the best samples."""


@dataclass(frozen=True)
class Batch:
    """The rows of step `step`, in order of group index, n and sequence. Filtered, dropped and masked samples are not among them."""

    step: int
    samples: Sequence[TrainSample]

    @cached_property
    def trainable_counts(self) -> Sequence[int]:
        """Trainable tokens of each row."""
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

    def row_weights(self, spec: RunSpec) -> Sequence[float]:
        """Each row's weight of one trainable token, by `token_weights`: all rows of a sample count as one sequence."""
        numbers = sample_numbers(self.samples)
        counts = [0] * (numbers[-1] + 1 if numbers else 0)
        for number, count in zip(numbers, self.trainable_counts, strict=True):
            counts[number] += count
        weights = token_weights(counts, spec.algorithm.aggregate, spec.max_drawn_tokens)
        return [weights[number] for number in numbers]

    @property
    def has_weight(self) -> bool:
        """Whether there is anything to learn from."""
        return any(self.trainable_counts)


def micro_batches(
    batch: Batch, budget: int, shares_prompts: bool = True, portions: int = 1, *, whole_samples: bool = False
) -> list[Sequence[TrainSample]]:
    """The batch in pieces of at most `budget` tokens; a longer row goes alone. Depends on the rows alone.

    It is first cut into up to `portions` of about equally many tokens, between groups. With `whole_samples` all rows of a sample are in
    one piece, whatever their length.
    """
    return [
        piece
        for portion in _portions(batch.samples, portions)
        for piece in split_by_tokens(portion, budget, shares_prompts, sample_numbers(portion) if whole_samples else None)
    ]


def sample_numbers(rows: Sequence[TrainSample]) -> list[int]:
    """The number of each row's sample, counted from 0 among those of `rows`."""
    numbers: list[int] = []
    number, before = -1, None
    for row in rows:
        number += row.origin is None or row.origin != before
        before = row.origin
        numbers.append(number)
    return numbers


def by_sample(rows: Sequence[TrainSample]) -> list[list[TrainSample]]:
    """The rows of each sample."""
    numbers = iter(sample_numbers(rows))
    return [list(group) for _, group in groupby(rows, key=lambda _: next(numbers))]


def prompt_groups(rows: Sequence[TrainSample]) -> list[list[TrainSample]]:
    """The groups of a batch's rows: neighbours with the same prompt, or of a group whose sequences have prompts of their own."""
    return [list(group) for _, group in groupby(rows, key=_group_key)]


def _group_key(row: TrainSample) -> bytes | int:
    return row.prompt_ids.tobytes() if row.origin is None else row.origin.group


def _portions(samples: Sequence[TrainSample], count: int) -> list[Sequence[TrainSample]]:
    if count == 1 or not samples:
        return [samples]
    groups = prompt_groups(samples)
    sizes = [sum(len(sample.prompt_ids) + len(sample.token_ids) for sample in group) for group in groups]
    middles = np.cumsum(sizes) - np.array(sizes) / 2
    portion_of = iter((middles * count / sum(sizes)).astype(int).tolist())
    return [list(chain.from_iterable(portion)) for _, portion in groupby(groups, key=lambda _: next(portion_of))]

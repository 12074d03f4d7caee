"""The rows that each rank computes in a step: about the same number of tokens, in the same number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from gradbus.spec import RunSpec
from gradbus_kernels.models.packing import split_by_tokens
from gradbus_trainer.learners.loss_inputs import policy_settings
from gradbus_trainer.step.batch import Batch, TrainSample, sample_numbers


@dataclass(frozen=True, slots=True)
class Piece:
    """A micro-batch: rows, and each row's weight of one trainable token."""

    samples: Sequence[TrainSample]
    weights: Sequence[float]


def pieces_of(batch: Batch, spec: RunSpec, rank: int, ranks: int, *, whole_samples: bool = False) -> list[Piece]:
    """The micro-batches of `rank` of `ranks`. A function of the rows and the spec alone.

    Neighbours stay together, because they share prompts; all rows of a sample are in one piece with `whole_samples`, and if the loss needs
    whole sequences. Every backward pass is a collective, so a rank that has fewer pieces adds idle ones, of weight 0.
    """
    weights = batch.row_weights(spec)
    whole = whole_samples or policy_settings(spec.algorithm).needs_sequences
    numbers = sample_numbers(batch.samples) if whole else list(range(len(batch.samples)))
    ranks_of = _owners(_sizes(batch.samples, numbers), ranks)
    shares = []
    for owner in range(ranks):
        rows = [row for row, number in enumerate(numbers) if ranks_of[number] == owner]
        own = iter([weights[row] for row in rows])
        together = [numbers[row] for row in rows]
        parts = split_by_tokens([batch.samples[row] for row in rows], spec.trainer.micro_batch_tokens, owners=together)
        shares.append([Piece(part, list(islice(own, len(part)))) for part in parts])
    most = max(len(share) for share in shares)
    shortest = min(batch.samples, key=lambda sample: len(sample.prompt_ids) + len(sample.token_ids))
    return shares[rank] + [idle_piece(shortest)] * (most - len(shares[rank]))


def rows_before(batch: Batch, rank: int, ranks: int) -> int:
    """Rows of the ranks before `rank`, where a rank has whole samples."""
    numbers = sample_numbers(batch.samples)
    owners = _owners(_sizes(batch.samples, numbers), ranks)
    return sum(owners[number] < rank for number in numbers)


def idle_sample() -> TrainSample:
    """A row that trains nothing."""
    one, zero = np.zeros(1, np.int32), np.zeros(1, np.float32)
    return TrainSample(one, one, zero, np.zeros(1, bool), zero, zero)


def idle_piece(sample: TrainSample) -> Piece:
    """A piece that takes part in every collective and changes nothing."""
    return Piece([replace(sample, trainable=np.zeros_like(sample.trainable))], [0.0])


def _sizes(rows: Sequence[TrainSample], numbers: Sequence[int]) -> list[int]:
    """Tokens of the rows with each number."""
    sizes = [0] * (numbers[-1] + 1)
    for row, number in zip(rows, numbers, strict=True):
        sizes[number] += len(row.prompt_ids) + len(row.token_ids)
    return sizes


def _owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank of each size. All tokens are cut into equal parts, one per rank; a size belongs to the part that has its middle."""
    total, before, owners = sum(sizes), 0, []
    for size in sizes:
        owners.append(ranks * (2 * before + size) // (2 * total))
        before += size
    return owners

"""The rows that each rank computes in a step: about the same number of tokens, in the same number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from gradbus.spec import RunSpec
from gradbus_kernels.models.packing import split_by_tokens
from gradbus_kernels.operators import token_weights
from gradbus_trainer.step.batch import Batch, TrainSample


@dataclass(frozen=True, slots=True)
class Piece:
    """A micro-batch: rows, and each row's weight of one trainable token."""

    samples: Sequence[TrainSample]
    weights: Sequence[float]


def pieces_of(batch: Batch, spec: RunSpec, rank: int, ranks: int) -> list[Piece]:
    """The micro-batches of `rank` of `ranks`. A function of the rows and the spec alone.

    Neighbours stay together, because they share prompts. Every backward pass is a collective, so a rank that has fewer
    pieces adds idle ones, of weight 0.
    """
    weights = token_weights(batch.trainable_counts, spec.algorithm.aggregate, spec.max_drawn_tokens)
    owners = _owners([len(sample.prompt_ids) + len(sample.token_ids) for sample in batch.samples], ranks)
    shares = []
    for owner in range(ranks):
        rows = [number for number, of in enumerate(owners) if of == owner]
        own = iter([weights[number] for number in rows])
        parts = split_by_tokens([batch.samples[number] for number in rows], spec.trainer.micro_batch_tokens)
        shares.append([Piece(part, list(islice(own, len(part)))) for part in parts])
    most = max(len(share) for share in shares)
    shortest = min(batch.samples, key=lambda sample: len(sample.prompt_ids) + len(sample.token_ids))
    return shares[rank] + [idle_piece(shortest)] * (most - len(shares[rank]))


def idle_piece(sample: TrainSample) -> Piece:
    """A piece that takes part in every collective and changes nothing."""
    return Piece([replace(sample, trainable=np.zeros_like(sample.trainable))], [0.0])


def _owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """The rank of each row. All tokens are cut into equal parts, one per rank; a row belongs to the part that has its middle."""
    total, before, owners = sum(sizes), 0, []
    for size in sizes:
        owners.append(ranks * (2 * before + size) // (2 * total))
        before += size
    return owners

"""How the rows of a step are shared out over ranks."""

import numpy as np
import pytest
import torch

from gradbus_kernels.models.packing import pack
from gradbus_trainer.learners.deepspeed.shares import idle_piece, pieces_of
from gradbus_trainer.step.batch import Batch, by_sample


def shares(batch, spec, ranks):
    return [pieces_of(batch, spec, rank, ranks) for rank in range(ranks)]


def is_idle(piece):
    return piece.weights == [0.0] and not any(sample.trainable.any() for sample in piece.samples)


@pytest.mark.parametrize("ranks", [1, 2, 3, 20])
def test_every_row_is_somebodys_once_and_in_order(make_spec, make_batch, ranks):
    batch = make_batch(all_trainable=True)
    found = [sample for share in shares(batch, make_spec(), ranks) for piece in share if not is_idle(piece) for sample in piece.samples]
    assert [id(sample) for sample in found] == [id(sample) for sample in batch.samples]


@pytest.mark.parametrize("ranks", [1, 2, 3, 20])
@pytest.mark.parametrize("budget", [1, 30, 8192])
def test_all_ranks_have_as_many_pieces_within_the_budget(make_spec, make_batch, ranks, budget):
    given = shares(make_batch(), make_spec(trainer={"micro_batch_tokens": budget}), ranks)
    assert len({len(share) for share in given}) == 1
    for piece in (piece for share in given for piece in share):
        assert len(piece.samples) == 1 or pack(piece.samples, torch.device("cpu")).layout.tokens <= budget


def test_ranks_get_about_as_many_tokens(make_spec, make_batch):
    sizes = [
        sum(len(sample.prompt_ids) + len(sample.token_ids) for piece in share for sample in piece.samples)
        for share in shares(make_batch(), make_spec(), 2)
    ]
    longest = max(len(sample.prompt_ids) + len(sample.token_ids) for sample in make_batch().samples)
    assert abs(sizes[0] - sizes[1]) <= longest


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_weights_of_all_ranks_add_up_to_one(make_spec, make_batch, aggregate, ranks):
    total = sum(
        weight * np.count_nonzero(sample.trainable)
        for share in shares(make_batch(), make_spec(algorithm={"aggregate": aggregate}), ranks)
        for piece in share
        for sample, weight in zip(piece.samples, piece.weights, strict=True)
    )
    assert total == pytest.approx(1.0)


def test_a_rank_without_rows_idles_on_the_shortest(make_spec, make_batch):
    samples = make_batch().samples[:2]
    given = shares(Batch(0, samples), make_spec(), 3)
    shortest = min(samples, key=lambda sample: len(sample.prompt_ids) + len(sample.token_ids))
    idle = [share[0] for share in given if is_idle(share[0])]
    assert [piece.samples[0].prompt_ids is shortest.prompt_ids for piece in idle] == [True]


def test_an_idle_piece_leaves_its_row_alone(make_batch):
    sample = make_batch(all_trainable=True).samples[0]
    assert is_idle(idle_piece(sample))
    assert sample.trainable.all()


@pytest.mark.parametrize("ranks", [1, 2, 3, 20])
def test_a_ratio_of_sequences_keeps_all_rows_of_a_sample_in_one_piece(make_spec, make_batch, ranks, split):
    batch = Batch(0, split(make_batch(all_trainable=True).samples))
    given = shares(batch, make_spec(algorithm={"name": "gspo"}, trainer={"micro_batch_tokens": 15}), ranks)
    pieces = [piece for share in given for piece in share if not is_idle(piece)]
    assert [id(row) for piece in pieces for row in piece.samples] == [id(row) for row in batch.samples]
    assert sum(len(by_sample(piece.samples)) for piece in pieces) == 12
    weights = {}
    for piece in pieces:
        for row, weight in zip(piece.samples, piece.weights, strict=True):
            weights[row.origin] = weights.get(row.origin, 0.0) + weight * row.trainable.sum()
    assert list(weights.values()) == pytest.approx([1 / 12] * 12)

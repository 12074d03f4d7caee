"""Whitened advantages: mean 0 and variance 1 over a step's samples or trainable tokens, whatever their order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus_trainer.step.batch import TrainSample
from gradbus_trainer.step.whitening import whitened


def sample(advantage, mask):
    tokens = np.zeros(len(mask), np.int32)
    return TrainSample(tokens, tokens, tokens.astype(np.float32), np.array(mask), np.full(len(mask), advantage, np.float32))


samples = st.lists(st.builds(sample, st.integers(-50, 50), st.lists(st.booleans(), min_size=1, max_size=6)), min_size=1, max_size=9)


def values_of(rows, by):
    trained = [row.advantages[row.trainable].astype(np.float64) for row in rows if row.trainable.any()]
    return np.concatenate(trained) if by == "tokens" else np.array([part.mean() for part in trained])


@given(samples)
@pytest.mark.parametrize("by", ["samples", "tokens"])
def test_mean_and_variance_of_what_is_trained(by, rows):
    found = whitened(rows, by)
    if not any(row.trainable.any() for row in rows):
        assert found is rows
        return
    before, after = values_of(rows, by), values_of(found, by)
    if np.ptp(before) == 0.0:
        assert (after == 0.0).all()
    else:
        rounding = 1e-6 * np.abs(after).max()  # of float32, which an outlier has the most of
        assert (after.mean(), after.var()) == (pytest.approx(0.0, abs=rounding), pytest.approx(1.0, abs=1e-5))


@given(samples, st.randoms())
@pytest.mark.parametrize("by", ["samples", "tokens"])
def test_the_order_of_the_samples_changes_no_bit(by, rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    straight, shuffled = whitened(rows, by), whitened([rows[place] for place in order], by)
    assert all((one.advantages == straight[place].advantages).all() for place, one in zip(order, shuffled, strict=True))


def test_two_samples_by_hand():
    rows = [sample(1.0, [True]), sample(-1.0, [True, True, True])]
    assert [row.advantages[0] for row in whitened(rows, "samples")] == [1.0, -1.0]
    assert [row.advantages[0] for row in whitened(rows, "tokens")] == pytest.approx([3.0**0.5, -(3.0**-0.5)])
    assert whitened(rows, "none") is rows

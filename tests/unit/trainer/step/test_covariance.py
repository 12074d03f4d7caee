"""The clip of covariances: exact numbers, the authors' choice written out token by token, and what has no part in it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.ids import sample_seed
from gradbus.spec import AlgorithmSpec, CovarianceClipSpec
from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.covariance import without_covarying


def sample(logprobs, advantages, trainable=None):
    ids = np.arange(len(logprobs), dtype=np.int32)
    mask = np.ones(len(ids), np.bool_) if trainable is None else np.array(trainable)
    return TrainSample(ids[:1], ids, np.array(logprobs, np.float32), mask, np.array(advantages, np.float32))


def clipped(batch, share, bounds, seed=0):
    return without_covarying(batch, CovarianceClipSpec(share=share, bounds=bounds), seed)


def chosen(before, after):
    """The places among the trainable tokens whose advantage became 0."""
    pairs = zip(before, after, strict=True)
    return np.flatnonzero(
        np.concatenate([((one.advantages != 0) & (other.advantages == 0))[one.trainable] for one, other in pairs])
    ).tolist()


def test_the_covariances_of_four_tokens():
    """Means 0 and -2: the covariances are 1.5, 0.5, 1 and 1, and the token that is not trained has no part in the means."""
    rows = [sample([-0.5, -1.5, -50.0], [1.0, 1.0, 9.0], [True, True, False]), sample([-3.0, -3.0], [-1.0, -1.0])]
    for bounds, expected in (([0.9, 5.0], {0, 2, 3}), ([1.2, 5.0], {0}), ([0.4, 0.6], {1}), ([2.0, 5.0], set())):
        found = clipped(Batch(3, rows), 1.0, bounds)
        assert (set(chosen(rows, found.batch.samples)), found.share, found.batch.step) == (expected, len(expected) / 4, 3)


eighths = st.integers(-24, 24).map(lambda number: number / 8)
token = st.tuples(eighths.map(lambda number: -abs(number)), eighths.filter(bool), st.booleans())
steps = st.lists(st.lists(token, min_size=1, max_size=8), min_size=1, max_size=6).filter(
    lambda rows: any(one[2] for row in rows for one in row)
)


@given(steps, st.sampled_from([1e-3, 0.1, 0.4, 1.0]), st.integers(0, 9))
def test_the_choice_is_the_authors_with_keys_in_place_of_a_permutation(rows, share, step):
    samples = [sample(*zip(*row, strict=True)) for row in rows]
    trained = [(logp, a) for row in rows for logp, a, counts in row if counts]
    mean_logp, mean_a = (sum(column) / len(trained) for column in zip(*trained, strict=True))
    pool = [place for place, (logp, a) in enumerate(trained) if 0.3 < (a - mean_a) * (logp - mean_logp) < 2.0]
    pool.sort(key=lambda place: sample_seed(7, "covariance clip", step, place))
    expected = pool[: max(int(share * len(trained)), 1)]
    found = clipped(Batch(step, samples), share, [0.3, 2.0], seed=7)
    assert chosen(samples, found.batch.samples) == sorted(expected)
    assert found.share == pytest.approx(len(expected) / len(trained))


def test_another_step_and_another_run_choose_others():
    rows = [sample([-0.1, -3.0] * 50, [1.0, -1.0] * 50)]
    picks = {(seed, step): clipped(Batch(step, rows), 0.1, [0.5, 5.0], seed) for seed in (0, 1) for step in (0, 1)}
    assert {found.share for found in picks.values()} == {0.1}
    assert len({tuple(chosen(rows, found.batch.samples)) for found in picks.values()}) == 4


def test_what_is_chosen_loses_its_advantage_and_nothing_else():
    one, untouched = sample([-0.5, -9.0, -1.0], [2.0, 5.0, -2.0], [True, False, True]), sample([-0.5], [0.1])
    found = clipped(Batch(0, [one, untouched]), 0.4, [0.1, 9.0]).batch.samples
    assert found[0].advantages.tolist() in ([0.0, 5.0, -2.0], [2.0, 5.0, 0.0])
    assert (found[0].advantages.dtype, found[0].trainable is one.trainable, found[1] is untouched) == (np.float32, True, True)
    assert one.advantages.tolist() == [2.0, 5.0, -2.0]


def test_without_the_setting_or_a_trained_token_the_batch_is_itself():
    batch = Batch(0, [sample([-0.5, -1.0], [2.0, -2.0])])
    nothing = Batch(0, [replace(batch.samples[0], trainable=np.zeros(2, np.bool_))])
    wide, narrow = (CovarianceClipSpec(share=1.0, bounds=bounds) for bounds in ([0.0, 9.0], [5.0, 9.0]))
    for one, settings in ((batch, None), (nothing, wide), (batch, narrow)):
        found = without_covarying(one, settings, 0)
        assert (found.batch is one, found.share) == (True, 0.0)


def test_the_preset_has_the_numbers_of_the_papers_runs():
    clip = AlgorithmSpec(name="clip_cov").covariance_clip
    assert (clip.share, clip.bounds) == (2e-4, (1.0, 5.0))

"""The bound of the second moment: exact numbers, a loop that drops one token after the other, and what must not change the choice."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.second_moment import within_second_moment


def sample(log_ratios, trainable=None, advantage=1.0):
    """A sample whose tokens have these log-ratios of pi0 and mu."""
    count = len(log_ratios)
    mask = np.ones(count, np.bool_) if trainable is None else np.array(trainable)
    ratios, ids = np.array(log_ratios, np.float32), np.arange(count, dtype=np.int32)
    return TrainSample(ids[:1], ids, np.zeros(count, np.float32), mask, np.full(count, advantage, np.float32), proximal_logprobs=ratios)


def kept(found):
    return [part.advantages.astype(bool).tolist() for part in found.batch.samples]


def test_two_of_five_squares_are_dropped():
    """Means .1522, .0653 and then .0203, below .04."""
    ratios = np.sqrt([0.001, 0.5, 0.01, 0.2, 0.05]) * [1, -1, 1, 1, -1]
    found = within_second_moment(Batch(3, [sample(ratios[:2]), sample(ratios[2:])]), 0.04)
    assert kept(found) == [[True, False], [True, False, True]]
    assert (found.share, found.batch.step) == (pytest.approx(0.4), 3)


def written_out(moments, limit):
    """The paper's loop: the largest is dropped, with its equals, until the mean of the rest is below the limit."""
    rest = list(moments)
    while rest and sum(rest) / len(rest) >= limit:
        largest = max(rest)
        rest = [moment for moment in rest if moment < largest]
    return [moment in rest for moment in moments]


eighths = st.integers(-12, 12).map(lambda number: number / 8)
tokens = st.lists(st.tuples(eighths, st.booleans()), min_size=1, max_size=8)
steps = st.lists(tokens, min_size=1, max_size=6).filter(lambda rows: any(counts for row in rows for _, counts in row))


@given(steps, st.sampled_from([0.02, 0.25, 0.3, 1.0, 5.0]))
def test_the_choice_is_that_of_the_papers_loop_over_the_tokens_that_are_trained(rows, limit):
    samples = [sample([ratio for ratio, _ in row], [counts for _, counts in row]) for row in rows]
    found = within_second_moment(Batch(0, samples), limit)
    trained = [ratio**2 for row in rows for ratio, counts in row if counts]
    expected = written_out(trained, limit)
    chosen = [
        keep for part, one in zip(kept(found), samples, strict=True) for keep, counts in zip(part, one.trainable, strict=True) if counts
    ]
    assert chosen == expected
    assert found.share == pytest.approx(expected.count(False) / len(expected))


@given(steps, st.randoms())
def test_neither_order_nor_cut_of_the_samples_nor_a_token_that_is_not_trained_changes_the_choice(rows, random):
    samples = [sample([ratio for ratio, _ in row], [counts for _, counts in row]) for row in rows]
    order = list(range(len(samples)))
    random.shuffle(order)
    straight = within_second_moment(Batch(0, samples), 0.25)
    shuffled = within_second_moment(Batch(0, [samples[n] for n in order]), 0.25)
    assert kept(shuffled) == [kept(straight)[n] for n in order]
    spoilt = [replace(one, proximal_logprobs=np.where(one.trainable, one.proximal_logprobs, np.float32(50.0))) for one in samples]
    trained = [[part[at] for at in np.flatnonzero(one.trainable)] for part, one in zip(kept(straight), samples, strict=True)]
    found = kept(within_second_moment(Batch(0, spoilt), 0.25))
    assert [[part[at] for at in np.flatnonzero(one.trainable)] for part, one in zip(found, samples, strict=True)] == trained


def test_within_the_bound_and_without_one_the_samples_are_the_same():
    batch = Batch(0, [sample([0.1, -0.1]), sample([0.05])])
    for limit in (0.04, None):
        found = within_second_moment(batch, limit)
        assert all(one is other for one, other in zip(found.batch.samples, batch.samples, strict=True))
        assert found.share == 0.0


def test_what_is_dropped_loses_its_advantage_and_nothing_else():
    one = sample([0.0, 3.0], advantage=-0.5)
    [found] = within_second_moment(Batch(0, [one]), 0.04).batch.samples
    assert found.advantages.tolist() == [-0.5, 0.0]
    assert found.advantages.dtype == np.float32
    assert (found.trainable is one.trainable, found.behaviour_logprobs is one.behaviour_logprobs) == (True, True)


def test_a_sample_without_the_policy_before_the_step_is_refused():
    with pytest.raises(ValueError, match="compute them before"):
        within_second_moment(Batch(0, [replace(sample([0.1]), proximal_logprobs=None)]), 0.04)

"""The minibatches of a step: whole groups, each once an epoch, in an order that is a function of seed, step and epoch."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.spec import InnerSpec
from gradbus_trainer.step.batch import Batch, TrainSample
from gradbus_trainer.step.minibatches import minibatches, permutation


def batch(groups, step=0, size=2):
    """Groups whose prompt is their number, and whose tokens are those of their samples."""

    def sample(group, n):
        zero = np.zeros(1, np.float32)
        return TrainSample(np.array([group], np.int32), np.array([n], np.int32), zero, np.ones(1, bool), zero)

    return Batch(step, [sample(group, n) for group in range(groups) for n in range(size)])


def numbers(part):
    """Group and n of each sample."""
    return [(int(sample.prompt_ids[0]), int(sample.token_ids[0])) for sample in part.samples]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3), st.integers(0, 9))
def test_each_epoch_has_every_sample_once_and_no_part_splits_a_group(groups, parts, epochs, seed):
    step = batch(groups)
    found = [numbers(part) for part in minibatches(step, InnerSpec(epochs=epochs, minibatches=parts), seed)]
    whole = min(parts, groups)
    assert len(found) == epochs * whole
    for epoch in range(epochs):
        mine = found[epoch * whole : (epoch + 1) * whole]
        assert sorted(chain.from_iterable(mine)) == numbers(step)
        assert all(part == sorted(part) and len(part) % 2 == 0 for part in mine), "in the order of the log"
        assert max(map(len, mine)) - min(map(len, mine)) <= 2, "as many groups each, or one more"


def test_the_permutation_is_a_function_of_seed_step_and_epoch():
    one = permutation(20, 7, 3, 1)
    assert sorted(one) == list(range(20)) != list(one)
    assert permutation(20, 7, 3, 1) == one
    assert one not in (permutation(20, 8, 3, 1), permutation(20, 7, 4, 1), permutation(20, 7, 3, 2))


def test_the_permutation_is_the_same_on_every_machine():
    assert [permutation(6, 0, 0, epoch) for epoch in range(2)] == [[2, 3, 1, 0, 4, 5], [5, 4, 2, 1, 0, 3]]


@given(st.integers(0, 1000))
def test_every_group_may_come_first(seed):
    assert {permutation(3, seed, step, 0)[0] for step in range(60)} == {0, 1, 2}


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_single_part_is_the_step_itself(epochs):
    step = batch(5)
    found = list(minibatches(step, InnerSpec(epochs=epochs), 0))
    assert len(found) == epochs
    assert all(part is step for part in found)


def test_a_part_without_a_token_to_train_is_left_out():
    step = batch(4)
    mute = [replace(sample, trainable=np.zeros(1, bool)) if sample.prompt_ids[0] == 2 else sample for sample in step.samples]
    found = [numbers(part) for part in minibatches(Batch(0, mute), InnerSpec(minibatches=4), 0)]
    assert sorted(chain.from_iterable(found)) == [(group, n) for group in (0, 1, 3) for n in range(2)]

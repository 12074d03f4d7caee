"""The KL of a whole step in its rewards: the bits of the one that is taken group by group, and a loop over tokens."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.algorithms.reward_kl import returns_to_go
from gradbus_trainer.step.batch import TrainSample
from gradbus_trainer.step.kl_in_reward import with_kl_in_reward

nats = st.floats(-8, 0, width=32)
rows = st.lists(st.tuples(nats, nats, st.booleans()), min_size=1, max_size=6)


def sample(row, reward=1.0):
    mu, ref, trainable = zip(*row, strict=True)
    ids = np.arange(len(row), dtype=np.int32)
    advantages = np.full(len(row), reward, np.float32)
    return TrainSample(ids[:1], ids, np.array(mu, np.float32), np.array(trainable), advantages, np.array(ref, np.float32))


@given(rows, st.floats(-4, 4, width=32), st.floats(0.01, 3))
def test_it_has_the_bits_of_the_kl_of_a_group(row, reward, beta):
    [found] = with_kl_in_reward([sample(row, reward)], beta)
    kl = [float(np.float32(mu)) - float(np.float32(ref)) if flag else 0.0 for mu, ref, flag in row]
    assert array("f", found.advantages) == returns_to_go(reward, kl, beta)
    assert found.advantages.dtype == np.float32


def test_three_tokens_by_hand():
    """k1 = .5, (a tool's), -.25, 1; beta .5; R 2."""
    one = sample([(-1.0, -1.5, True), (-9.0, float("nan"), False), (-1.25, -1.0, True), (-0.5, -1.5, True)], 2.0)
    [found] = with_kl_in_reward([one], 0.5)
    assert found.advantages.tolist() == [2.0 - 0.625, 2.0 - 0.375, 2.0 - 0.375, 1.5]


def test_a_sample_without_its_reference_is_refused():
    with pytest.raises(ValueError, match="judge its group again"):
        with_kl_in_reward([replace(sample([(-1.0, -1.0, True)]), reference_logprobs=None)], 0.1)

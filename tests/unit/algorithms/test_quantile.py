"""The quantile baseline: the two regimes of its paper, and numpy's quantile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.algorithms import Algorithm
from gradbus.algorithms.estimators import STD_EPSILON
from gradbus.spec import AlgorithmSpec
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, SampleReward

K = 0.4


def advantages(rewards, **fields):
    scored = [SampleReward(status=REWARD_STATUS_OK, reward=reward) for reward in rewards]
    algorithm = Algorithm(AlgorithmSpec(name="qae", **fields), 8)
    return np.array(algorithm.compute_advantages(scored, [False] * len(rewards), [1] * len(rewards)).advantages)


@pytest.mark.parametrize("right", range(1, 10))
def test_of_a_hard_prompt_right_answers_are_raised_and_of_an_easy_one_wrong_answers_lowered(right):
    """Ten answers: equations of the paper's two regimes, p <= 1 - K and p > 1 - K."""
    rewards = np.array([1.0] * right + [0.0] * (10 - right))
    baseline = 0.0 if right / 10 <= 1 - K else 1.0
    expected = (rewards - baseline) / (rewards.std(ddof=1) + STD_EPSILON)
    assert advantages(rewards) == pytest.approx(expected, abs=1e-12)
    assert (advantages(rewards)[rewards == baseline] == 0.0).all(), "the others have no advantage"


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=20))
def test_the_baseline_is_the_quantile_of_the_groups_distribution(rewards):
    baseline = np.quantile(rewards, K, method="inverted_cdf")
    assert advantages(rewards, normalize_std=False) == pytest.approx(np.array(rewards) - baseline, rel=1e-12, abs=1e-12)

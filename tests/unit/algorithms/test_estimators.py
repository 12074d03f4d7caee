"""The estimators: numbers of their papers, and the gradient that they estimate, by enumeration of all groups."""

import math
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from gradbus.algorithms import Algorithm
from gradbus.spec import AlgorithmSpec
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK

LOGITS = np.array([0.3, -0.5, 1.1])
REWARDS = np.array([0.2, 1.0, 0.7])


@dataclass(frozen=True)
class Scored:
    reward: float
    components: dict = field(default_factory=dict)
    status: int = REWARD_STATUS_OK


def judged(rewards, lengths=None, components=None, greedy=None, **fields):
    samples = [Scored(reward, parts) for reward, parts in zip(rewards, components or [{}] * len(rewards), strict=True)]
    algorithm = Algorithm(AlgorithmSpec(**fields), 20)
    return algorithm.compute_advantages(samples, [False] * len(samples), lengths or [1] * len(samples), greedy=greedy)


def advantages(rewards, **fields):
    return list(judged(rewards, **fields).advantages)


def test_three_of_eight_right():
    rewards = [1.0] * 3 + [0.0] * 5
    assert advantages(rewards, name="rloo")[::7] == pytest.approx([0.714286, -0.428571], abs=1e-6)
    assert advantages(rewards)[::7] == pytest.approx([1.207, -0.724], abs=1e-3)
    assert advantages(rewards, name="dr_grpo")[::7] == [0.625, -0.375]


def test_the_optimal_baseline_weighs_rewards_by_length():
    given = advantages([1.0, 0.0, 0.0, 1.0], lengths=[10, 20, 30, 60], name="opo")
    assert given == pytest.approx([1 - 0.583333, -0.583333, -0.583333, 1 - 0.583333], abs=1e-6)
    assert advantages([1.0, 0.0, 2.0], lengths=[7, 7, 7], name="opo") == advantages([1.0, 0.0, 2.0], name="dr_grpo")
    assert advantages([1.0, 0.0], lengths=[0, 0], name="opo") == [0.5, -0.5]


def test_an_answer_near_the_limit_loses_reward():
    loss = [judged([0.0, 0.0], lengths=[length, 1], name="dapo", overlong_buffer=0.2).mean * 2 for length in (16, 17, 18, 20, 99)]
    assert loss == pytest.approx([0.0, -0.25, -0.5, -1.0, -1.0])
    assert judged([1.0, 1.0], lengths=[20, 3], name="dapo").advantages[0] < 0.0


def test_both_components_that_vary_count_twice():
    one = judged([0.0, 1.0], components=[{"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 1.0}], name="gdpo").advantages
    both = judged([0.0, 2.0], components=[{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}], name="gdpo").advantages
    assert one == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-3)
    assert both == pytest.approx([2 * value for value in one])
    pairs = advantages([0.0, 1.0]), advantages([0.0, 2.0])
    assert pairs[0] == pytest.approx(pairs[1], abs=1e-3), "the sum alone does not tell the two apart"


def test_groups_that_an_estimator_cannot_judge_say_why():
    same, other = {"a": 1.0, "b": 0.0}, {"a": 1.0, "c": 0.0}
    assert "`gdpo` needs two" in judged([0.0, 1.0], components=[{}, {}], name="gdpo").reason
    assert "different components" in judged([0.0, 1.0], components=[same, other], name="gdpo").reason
    assert "not a finite number" in judged([0.0, 1.0], components=[same, {"a": math.inf, "b": 0.0}], name="gdpo").reason
    assert "`maxrl` divides by their mean" in judged([-0.5, 1.0], name="maxrl").reason


def test_a_group_without_an_advantage_is_filtered_if_asked():
    two_are_best = judged([1.0, 1.0, 0.0], name="pass_k", filter="zero_variance")
    assert two_are_best.reason == "no valid sample has an advantage"
    assert judged([1.0, 1.0, 0.0], name="pass_k").reason == ""


def test_a_greedy_sample_is_the_baseline_and_a_group_without_one_is_filtered():
    assert advantages([1.0, 0.25], name="remax", greedy=0.5) == [0.5, -0.25]
    assert advantages([0.7], name="remax", greedy=0.7) == [0.0]
    assert judged([0.7, 0.7], name="remax", greedy=0.7, filter="zero_variance").reason == "all 2 valid rewards are equal"
    assert judged([0.7, 0.7], name="remax", greedy=0.5, filter="zero_variance").reason == ""
    assert judged([1.0], name="remax").reason == "the greedy sample has no reward, which is the baseline of the others"


def test_one_sample_is_enough_without_a_baseline():
    alone = judged([0.7], name="reinforce_pp")
    assert (alone.advantages, alone.reason) == ((0.7,), "")
    assert judged([0.7], name="rloo").reason == "1 of 1 samples are valid; an advantage needs two"


def probabilities(logits):
    raised = np.exp(logits - logits.max())
    return raised / raised.sum()


def expected_gradient(rewards, size, **fields):
    """E[1/G sum of A_i · d log pi(a_i) / d logits] over all groups of `size` arms."""
    p = probabilities(LOGITS)
    slopes = np.eye(3) - p  # of log pi(a) by the logits
    total = np.zeros(3)
    for arms in product(range(3), repeat=size):
        given = advantages([float(rewards[arm]) for arm in arms], filter="none", **fields)
        total += math.prod(p[list(arms)]) * np.mean([a * slopes[arm] for a, arm in zip(given, arms, strict=True)], axis=0)
    return total


def policy_gradient(rewards):
    p = probabilities(LOGITS)
    return p * (rewards - p @ rewards)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_leave_one_out_and_plain_rewards_are_unbiased_and_the_groups_mean_shrinks(size):
    exact = policy_gradient(REWARDS)
    assert expected_gradient(REWARDS, size, name="rloo") == pytest.approx(exact, rel=1e-12, abs=1e-14)
    assert expected_gradient(REWARDS, size, name="reinforce_pp") == pytest.approx(exact, rel=1e-12, abs=1e-14)
    assert expected_gradient(REWARDS, size, name="dr_grpo") == pytest.approx(exact * (size - 1) / size, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_greedy_baseline_is_unbiased_and_takes_variance_away(size):
    """The greedy sample is a function of the policy, not of the samples, so that its reward times the mean score, 0, is added."""
    greedy = float(REWARDS[LOGITS.argmax()])
    found = expected_gradient(REWARDS, size, name="remax", greedy=greedy)
    assert found == pytest.approx(policy_gradient(REWARDS), rel=1e-12, abs=1e-14)
    p, slopes = probabilities(LOGITS), np.eye(3) - probabilities(LOGITS)
    second = [sum(p[arm] * ((REWARDS[arm] - baseline) * slopes[arm]) ** 2 for arm in range(3)).sum() for baseline in (0.0, greedy)]
    assert second[1] < second[0]


def test_division_by_the_deviation_changes_the_direction():
    ratios = expected_gradient(REWARDS, 4, name="grpo") / policy_gradient(REWARDS)
    assert max(ratios) - min(ratios) > 0.05


@pytest.mark.parametrize("size", [2, 3, 4])
def test_maxrl_estimates_the_likelihood_up_to_its_order(size):
    """The gradient of sum over k < G of -(1 - p)^k / k, where p is the chance of success."""
    right = np.array([0.0, 1.0, 0.0])
    chance = probabilities(LOGITS)[1]
    factor = sum((1.0 - chance) ** (k - 1) for k in range(1, size))
    assert expected_gradient(right, size, name="maxrl") == pytest.approx(factor * policy_gradient(right), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_pass_k_estimates_the_gradient_of_the_expected_best(size):
    def expected_best(logits):
        p = probabilities(logits)
        return sum(math.prod(p[list(arms)]) * REWARDS[list(arms)].max() for arms in product(range(3), repeat=size))

    step = 1e-6
    slope = [(expected_best(LOGITS + step * axis) - expected_best(LOGITS - step * axis)) / (2 * step) for axis in np.eye(3)]
    assert size * expected_gradient(REWARDS, size, name="pass_k") == pytest.approx(slope, rel=1e-7, abs=1e-9)

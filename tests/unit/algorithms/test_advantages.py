"""The verdict on a group, and the advantages of GRPO."""

import math
import statistics
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.algorithms import Algorithm
from gradbus.spec import AlgorithmSpec
from gradbus.v1 import reward_pb2

OK, INVALID, ERROR = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID, reward_pb2.REWARD_STATUS_ERROR


@dataclass(frozen=True)
class Scored:
    reward: float
    status: int = OK


def judge(rewards, cut=None, **algorithm):
    return Algorithm(AlgorithmSpec(**algorithm), 8).compute_advantages(rewards, cut or [False] * len(rewards), [1] * len(rewards))


rewards_lists = st.lists(st.floats(-100, 100), min_size=2, max_size=16)


@given(rewards_lists)
def test_advantages_are_deviations_over_the_sample_standard_deviation(values):
    judged = judge([Scored(value) for value in values])
    if max(values) == min(values):
        assert judged.advantages == (0.0,) * len(values)
        return
    mean, std = statistics.fmean(values), statistics.stdev(values)
    expected = [(value - mean) / (std + 1e-4) for value in values]
    assert judged.advantages == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert (judged.mean, judged.std) == (pytest.approx(mean), pytest.approx(std))


@given(rewards_lists, st.randoms())
def test_a_samples_advantage_does_not_depend_on_the_order_of_the_group(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    straight = judge([Scored(value) for value in values]).advantages
    shuffled = judge([Scored(values[place]) for place in order]).advantages
    assert shuffled == tuple(straight[at] for at in order)


@given(st.floats(-1e6, 1e6), st.integers(2, 9))
def test_equal_rewards_give_exactly_zero_and_are_filtered(value, size):
    judged = judge([Scored(value)] * size)
    assert judged.advantages == (0.0,) * size
    assert judged.filtered
    assert judged.reason == f"all {size} valid rewards are equal"


def test_equal_rewards_are_kept_with_zero_advantage_when_the_filter_is_off():
    judged = judge([Scored(0.1)] * 3, filter="none")
    assert not judged.filtered
    assert judged.advantages == (0.0, 0.0, 0.0)
    assert judged.valid == (True, True, True)


@given(rewards_lists, st.sampled_from([INVALID, ERROR, reward_pb2.REWARD_STATUS_UNSPECIFIED]), st.integers(0, 16))
def test_a_failed_sample_leaves_mean_and_deviation(values, status, at):
    at = min(at, len(values))
    group = [Scored(value) for value in values]
    alone, mixed = judge(group), judge([*group[:at], Scored(1e9, status), *group[at:]])
    assert mixed.advantages == (*alone.advantages[:at], 0.0, *alone.advantages[at:])
    assert (mixed.mean, mixed.std) == (alone.mean, alone.std)
    assert mixed.valid == tuple(index != at for index in range(len(values) + 1))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e200, -1.0000001e6])
def test_a_reward_that_is_not_finite_or_out_of_range_masks_its_sample(reward):
    judged = judge([Scored(0.0), Scored(reward), Scored(1.0)])
    assert judged.valid == (True, False, True)
    assert judged.mean == 0.5


def test_fewer_than_two_valid_samples_are_filtered_whatever_the_filter():
    judged = judge([Scored(1.0), Scored(0.0, INVALID)], filter="none")
    assert judged.reason == "1 of 2 samples are valid; an advantage needs two"
    none = judge([Scored(1.0, ERROR)] * 2)
    assert (none.filtered, none.mean, none.std, none.advantages) == (True, 0.0, 0.0, (0.0, 0.0))


def test_truncated_samples_are_masked_only_on_demand():
    rewards, cut = [Scored(0.0), Scored(1.0), Scored(5.0)], [False, False, True]
    assert judge(rewards, cut).valid == (True, True, True)
    masked = judge(rewards, cut, truncated="mask")
    assert masked.valid == (True, True, False)
    assert masked.advantages == (*judge(rewards[:2]).advantages, 0.0)


def test_without_normalisation_advantages_are_plain_deviations():
    assert judge([Scored(0.0), Scored(1.0), Scored(5.0)], normalize_std=False).advantages == (-2.0, -1.0, 3.0)


def test_the_scorers_message_is_a_scored_sample():
    messages = [reward_pb2.SampleReward(sample_id=f"0.{n}", status=OK, reward=n) for n in range(2)]
    assert judge(messages).advantages == judge([Scored(0.0), Scored(1.0)]).advantages


def test_lists_of_different_length_are_refused():
    with pytest.raises(ValueError, match="longer"):
        Algorithm(AlgorithmSpec(), 8).compute_advantages([Scored(1.0)], [False, False], [1])

"""The contract between a run and every algorithm. A line in ALGORITHMS is enough to be tested here."""

import math
from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.algorithms import ALGORITHMS, algorithm_of, group_advantages
from gradbus.spec import AlgorithmSpec
from gradbus.v1 import reward_pb2
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Sample

OK, INVALID = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID


@dataclass(frozen=True)
class Scored:
    reward: float
    status: int = OK


groups = st.lists(st.builds(Scored, st.floats(-100, 100), st.sampled_from([OK, OK, OK, INVALID])), min_size=2, max_size=12)


@pytest.fixture(params=sorted(ALGORITHMS))
def algorithm(request):
    return algorithm_of(AlgorithmSpec(name=request.param))


def test_the_spec_knows_every_algorithm_and_no_other():
    assert set(get_args(AlgorithmSpec.model_fields["name"].annotation)) == set(ALGORITHMS)


@given(rewards=groups)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_only_valid_samples_have_an_advantage_and_a_group_of_too_few_is_filtered(name, rewards):
    algorithm = algorithm_of(AlgorithmSpec(name=name))
    judged = algorithm.compute_advantages(rewards, [False] * len(rewards))
    assert judged.valid == tuple(scored.status == OK for scored in rewards)
    assert all(valid or advantage == 0.0 for valid, advantage in zip(judged.valid, judged.advantages, strict=True))
    assert all(math.isfinite(advantage) for advantage in judged.advantages)
    assert judged.filtered == bool(judged.reason)
    assert judged.filtered or sum(judged.valid) >= algorithm.needs.valid_samples


@given(st.lists(st.builds(Scored, st.floats() | st.floats(-1e6, 1e6)), min_size=2, max_size=12))
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("normalize_std", [True, False])
def test_advantages_are_finite_in_float32_whatever_the_rewards(name, normalize_std, rewards):
    algorithm = algorithm_of(AlgorithmSpec(name=name, normalize_std=normalize_std))
    judged = algorithm.compute_advantages(rewards, [False] * len(rewards))
    tokens = algorithm.token_advantages(judged, [1] * len(rewards))
    assert all(math.isfinite(advantage) for values in tokens for advantage in values)


def test_every_token_of_a_sample_has_an_advantage_of_four_bytes(algorithm):
    lengths = [3, 0, 5]
    judged = algorithm.compute_advantages([Scored(0.0), Scored(1.0), Scored(2.0)], [False] * 3)
    tokens = algorithm.token_advantages(judged, lengths)
    assert [len(values) for values in tokens] == lengths
    assert {(values.typecode, values.itemsize) for values in tokens} == {("f", 4)}


def test_metric_names_are_the_learners(algorithm):
    from gradbus_trainer.learners.base import StepMetrics

    assert set(algorithm.metric_names) <= set(StepMetrics(noop=True, learning_rate=0.0).named())


def test_the_loss_settings_are_those_of_the_operator(algorithm):
    from gradbus_trainer.learners.loss_inputs import policy_settings

    settings, loss = policy_settings(algorithm.loss), algorithm.loss
    assert (settings.clip_low, settings.clip_high, settings.importance) == (loss.clip_low, loss.clip_high, loss.importance)
    assert (settings.kl, settings.entropy, settings.allow_nan) == (loss.kl, loss.entropy, True)


def test_a_kl_term_alone_needs_the_reference():
    assert [algorithm_of(AlgorithmSpec(kl=kl)).needs.reference for kl in (0.0, 0.1)] == [False, True]


def test_a_groups_advantages_are_from_the_rewards_of_its_samples_in_their_order(algorithm):
    finish = [FINISH_REASON_LENGTH, FINISH_REASON_STOP, FINISH_REASON_STOP]
    samples = [Sample(sample_id=str(n), finish_reason=reason) for n, reason in enumerate(finish)]
    rewards = {"2": Scored(4.0), "1": Scored(1.0), "0": Scored(0.0), "of another group": Scored(9.0)}
    expected = algorithm.compute_advantages([Scored(0.0), Scored(1.0), Scored(4.0)], [True, False, False])
    assert group_advantages(algorithm, samples, rewards) == expected
    with pytest.raises(KeyError):
        group_advantages(algorithm, [*samples, Sample(sample_id="3")], rewards)


def test_a_sample_that_was_cut_off_is_masked_in_its_group():
    samples = [Sample(sample_id=str(n), finish_reason=FINISH_REASON_LENGTH if n == 1 else FINISH_REASON_STOP) for n in range(3)]
    rewards = {str(n): Scored(float(n)) for n in range(3)}
    assert group_advantages(algorithm_of(AlgorithmSpec(truncated="mask")), samples, rewards).valid == (True, False, True)

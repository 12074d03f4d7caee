"""Properties that every preset has, by itself: a preset in the table is enough to be tested here."""

import math
from dataclasses import dataclass, field, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus.algorithms import ESTIMATORS, MAX_REWARD, SHADOW, Algorithm
from gradbus.spec import PRESETS, AlgorithmSpec
from gradbus.spec.presets import CRITICS
from gradbus.v1 import reward_pb2
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, Sample, Span

OK, INVALID = reward_pb2.REWARD_STATUS_OK, reward_pb2.REWARD_STATUS_INVALID
MOST_TOKENS = 8
WITHOUT_BASELINE = {"reinforce_pp", *CRITICS}
ALWAYS_OK = st.just(OK)

of_each = settings(max_examples=20)
"""The presets are many and share their estimators, so that each part is tried with hundreds of examples."""


@dataclass(frozen=True)
class Scored:
    reward: float
    status: int = OK
    components: dict = field(default_factory=dict)


def scored(values, status=ALWAYS_OK):
    """A sample whose reward is the sum of two components."""
    return st.builds(lambda one, two, status: Scored(one + two, status, {"one": one, "two": two}), values, values, status)


def group_of(sample):
    return st.lists(sample, min_size=2, max_size=12)


def algorithm_of(name, **fields):
    return Algorithm(AlgorithmSpec(name=name, **fields), MOST_TOKENS)


def judge(algorithm, rewards, lengths=None):
    """The verdict on samples beside a greedy one as good as the best of them."""
    valid = [sample.reward for sample in rewards if sample.status == OK and abs(sample.reward) <= MAX_REWARD]
    greedy = max(valid, default=None) if algorithm.greedy_samples else None
    lengths = lengths or [1 + n % MOST_TOKENS for n in range(len(rewards))]
    return algorithm.compute_advantages(rewards, [False] * len(rewards), lengths, greedy=greedy)


@pytest.fixture(params=PRESETS)
def algorithm(request):
    return algorithm_of(request.param)


def test_the_spec_knows_every_estimator_and_no_other():
    assert set(get_args(AlgorithmSpec.model_fields["advantage"].annotation)) == set(ESTIMATORS)


@of_each
@given(rewards=group_of(scored(st.floats(0, 100), st.sampled_from([OK, OK, OK, INVALID]))))
@pytest.mark.parametrize("name", PRESETS)
def test_only_valid_samples_have_an_advantage_and_a_group_of_too_few_is_filtered(name, rewards):
    algorithm = algorithm_of(name)
    judged = judge(algorithm, rewards)
    assert judged.valid == tuple(sample.status == OK for sample in rewards)
    assert all(valid or advantage == 0.0 for valid, advantage in zip(judged.valid, judged.advantages, strict=True))
    assert all(math.isfinite(advantage) for advantage in judged.advantages)
    assert judged.filtered == bool(judged.reason)
    assert judged.filtered or sum(judged.valid) >= algorithm.estimator.least_samples


@of_each
@given(rewards=group_of(scored(st.floats() | st.floats(-1e6, 1e6))))
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("normalize_std", [True, False])
def test_advantages_are_finite_in_float32_whatever_the_rewards(name, normalize_std, rewards):
    algorithm = algorithm_of(name, normalize_std=normalize_std)
    tokens = algorithm.token_advantages(judge(algorithm, rewards), [1] * len(rewards))
    assert all(math.isfinite(advantage) for values in tokens for advantage in values)


@of_each
@given(rewards=group_of(scored(st.floats(0, 100))), random=st.randoms())
@pytest.mark.parametrize("name", PRESETS)
def test_the_order_of_the_samples_changes_no_bit(name, rewards, random):
    algorithm, order, lengths = algorithm_of(name), list(range(len(rewards))), [1 + n % MOST_TOKENS for n in range(len(rewards))]
    random.shuffle(order)
    straight = judge(algorithm, rewards, lengths).advantages
    shuffled = judge(algorithm, [rewards[place] for place in order], [lengths[place] for place in order]).advantages
    assert shuffled == tuple(straight[place] for place in order)


@of_each
@given(value=st.floats(0, 100), size=st.integers(2, 9))
@pytest.mark.parametrize("name", sorted(set(PRESETS) - WITHOUT_BASELINE))
def test_equal_rewards_of_samples_of_one_length_give_exactly_zero(name, value, size):
    rewards = [Scored(2.0 * value, OK, {"one": value, "two": value})] * size
    assert judge(algorithm_of(name), rewards, [3] * size).advantages == (0.0,) * size


@of_each
@given(rewards=group_of(scored(st.integers(0, 100).map(float))))
@pytest.mark.parametrize("name", sorted(set(PRESETS) - WITHOUT_BASELINE - {"maxrl"}))
def test_a_number_added_to_all_rewards_changes_nothing(name, rewards):
    moved = [Scored(s.reward + 14.0, OK, {part: value + 7.0 for part, value in s.components.items()}) for s in rewards]
    algorithm = algorithm_of(name)
    assert judge(algorithm, moved).advantages == pytest.approx(judge(algorithm, rewards).advantages, rel=1e-9, abs=1e-9)


@given(rewards=group_of(scored(st.floats(1, 100))))
def test_a_factor_of_all_rewards_drops_out_of_maxrl(rewards):
    scaled = [Scored(8.0 * sample.reward) for sample in rewards]
    algorithm = algorithm_of("maxrl")
    assert judge(algorithm, scaled).advantages == pytest.approx(judge(algorithm, rewards).advantages, rel=1e-9, abs=1e-12)


def test_every_token_of_a_sample_has_an_advantage_of_four_bytes(algorithm):
    lengths = [3, 0, 5]
    rewards = [Scored(float(n), OK, {"one": float(n), "two": 0.0}) for n in range(3)]
    tokens = algorithm.token_advantages(judge(algorithm, rewards, lengths), lengths)
    assert [len(values) for values in tokens] == lengths
    assert {(values.typecode, values.itemsize) for values in tokens} == {("f", 4)}


def test_metric_names_are_the_learners(algorithm):
    from gradbus_trainer.learners.base import StepMetrics

    assert set(algorithm.metric_names) <= set(StepMetrics(noop=True, learning_rate=0.0).named())


def test_the_operator_takes_the_settings(algorithm):
    from gradbus_trainer.learners.loss_inputs import policy_settings

    settings, spec = policy_settings(algorithm.spec), algorithm.spec
    assert (settings.trust_region, settings.ratio, settings.importance) == (spec.trust_region, spec.ratio, spec.importance)
    assert spec.soft_temperatures in {None, settings.curves.temperatures}
    assert spec.gamma_curves in {None, settings.curves.gamma}
    assert spec.clip is None or (settings.low, settings.high) == spec.clip
    assert (settings.kl, settings.entropy, settings.allow_nan) == (0.0 if algorithm.kl_in_reward else spec.kl, spec.entropy, True)
    assert (settings.drift, settings.nll) == (spec.drift, spec.nll)


def test_a_kl_term_alone_needs_the_reference():
    assert [algorithm_of("grpo", kl=kl).needs_reference for kl in (0.0, 0.1)] == [False, True]


def test_a_groups_advantages_are_from_the_rewards_of_its_samples_in_their_order(algorithm):
    ends = [FINISH_REASON_LENGTH, FINISH_REASON_STOP, FINISH_REASON_STOP]
    samples = [
        Sample(sample_id=str(n), finish_reason=end, spans=[Span(end=n + 1, trainable=True), Span(start=n + 1, end=50)])
        for n, end in enumerate(ends)
    ]
    rewards = {str(n): Scored(value, OK, {"one": value, "two": 1.0}) for n, value in enumerate((0.0, 1.0, 4.0))}
    if not algorithm.is_scored:
        assert algorithm.group_advantages(samples, {}).advantages == (0.0, 0.0, 0.0)
        return
    if algorithm.greedy_samples:
        drawn = algorithm.compute_advantages([rewards["0"], rewards["1"]], [True, False], [1, 2], greedy=4.0)
        expected = replace(drawn, valid=(True, True, False), advantages=(*drawn.advantages, 0.0))
    else:
        expected = algorithm.compute_advantages([rewards["0"], rewards["1"], rewards["2"]], [True, False, False], [1, 2, 3])
    assert algorithm.group_advantages(samples, rewards | {"of another group": Scored(9.0)}) == expected
    with pytest.raises(KeyError):
        algorithm.group_advantages([*samples, Sample(sample_id="3")], rewards)


@given(rewards=group_of(scored(st.floats(-2, 2), st.sampled_from([OK, OK, INVALID]))), random=st.randoms())
def test_the_best_samples_are_the_valid_ones_with_the_largest_reward_above_zero(rewards, random):
    vapo, order = algorithm_of("vapo"), list(range(len(rewards)))
    samples = [Sample(sample_id=str(n), spans=[Span(end=2, trainable=True)]) for n in order]
    by_id = {str(n): reward for n, reward in enumerate(rewards)}
    best = [mark.best for mark in vapo.marks(samples, by_id, vapo.group_advantages(samples, by_id))]
    valid = [reward.reward for reward in rewards if reward.status == OK]
    assert best == [r.status == OK and r.reward > 0.0 and r.reward == max(valid) for r in rewards]
    random.shuffle(order)
    shuffled = [samples[n] for n in order]
    found = vapo.marks(shuffled, by_id, vapo.group_advantages(shuffled, by_id))
    assert [(mark.best, mark.cut_off) for mark in found] == [(best[n], False) for n in order]


def test_only_a_preset_with_a_likelihood_term_marks_samples(algorithm):
    assert algorithm.marks_samples == (algorithm.spec.name == "vapo")


def test_a_sample_that_was_cut_off_is_masked_in_its_group():
    samples = [Sample(sample_id=str(n), finish_reason=FINISH_REASON_LENGTH if n == 1 else FINISH_REASON_STOP) for n in range(3)]
    rewards = {str(n): Scored(float(n)) for n in range(3)}
    assert algorithm_of("grpo", truncated="mask").group_advantages(samples, rewards).valid == (True, False, True)


@of_each
@given(rewards=group_of(scored(st.floats(0, 100), st.sampled_from([OK, OK, INVALID]))), noise=st.floats(-9, 9))
@pytest.mark.parametrize("name", PRESETS)
def test_what_a_shadow_scorer_gives_changes_nothing(name, rewards, noise):
    shadowed = [
        Scored(one.reward, one.status, one.components | ({f"{SHADOW}judge": noise * n} if n % 2 else {})) for n, one in enumerate(rewards)
    ]
    alone, beside = judge(algorithm_of(name), rewards), judge(algorithm_of(name), shadowed)
    assert (alone.reason, alone.advantages) == (beside.reason, beside.advantages)

"""The advantage of distillation: a loop in float64, the gradient that it expects, and what it is beside rewards."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.algorithms import Algorithm
from gradbus.formats.tokens import pack_logprobs
from gradbus.spec import AlgorithmSpec
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, SampleReward
from gradbus.v1.sample_pb2 import FINISH_REASON_LENGTH, Sample, Span

nats = st.floats(-8, 0, width=32)
groups = st.lists(
    st.tuples(st.floats(-5, 5), st.lists(st.tuples(nats, nats, st.booleans()), min_size=1, max_size=6)), min_size=2, max_size=5
)


def sample(n, logprobs, trainable=None, **fields):
    """A sample with a span for each token."""
    flags = trainable or [True] * len(logprobs)
    spans = [Span(start=t, end=t + 1, trainable=flag) for t, flag in enumerate(flags)]
    return Sample(sample_id=str(n), token_ids=bytes(4 * len(logprobs)), logprobs=pack_logprobs(logprobs), spans=spans, **fields)


def trained(algorithm, samples, teachers, rewards=()):
    """The verdict, and the advantages of each sample's tokens as the trainer makes them."""
    kls = algorithm.teacher_kls(samples, [pack_logprobs(row) for row in teachers])
    scored = {str(n): SampleReward(status=REWARD_STATUS_OK, reward=reward) for n, reward in enumerate(rewards)}
    judged = algorithm.group_advantages(samples, scored)
    return judged, [row.tolist() for row in algorithm.token_advantages(judged, [len(one.logprobs) // 4 for one in samples], (), kls)]


def opd(**fields):
    return Algorithm(AlgorithmSpec(name="opd", **fields), 8, 1.0)


@given(groups)
def test_a_tokens_advantage_is_the_log_ratio_of_teacher_and_policy(rows):
    samples = [sample(n, [mu for mu, _, _ in row], [flag for _, _, flag in row]) for n, (_, row) in enumerate(rows)]
    judged, found = trained(opd(), samples, [[teacher for _, teacher, _ in row] for _, row in rows])
    assert (judged.filtered, judged.valid) == (False, (True,) * len(rows))
    for tokens, (_, row) in zip(found, rows, strict=True):
        assert tokens == [float(np.float32(teacher - mu)) if flag else 0.0 for mu, teacher, flag in row]


@given(groups, st.floats(0.01, 3))
@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce", "maxrl"])
def test_a_teacher_beside_rewards_adds_to_every_token(advantage, rows, coefficient):
    spec = AlgorithmSpec(advantage=advantage, normalize_std=False, filter="none")
    samples = [sample(n, [mu for mu, _, _ in row], [flag for _, _, flag in row]) for n, (_, row) in enumerate(rows)]
    teachers = [[teacher for _, teacher, _ in row] for _, row in rows]
    rewards = [abs(reward) for reward, _ in rows]
    judged, found = trained(Algorithm(spec, 8, coefficient), samples, teachers, rewards)
    alone, _ = trained(Algorithm(spec, 8), samples, teachers, rewards)
    assert judged == alone, "the verdict does not depend on the teacher"
    for tokens, advantage_of, (_, row) in zip(found, alone.advantages, rows, strict=True):
        expected = [advantage_of + coefficient * (teacher - mu) * flag for mu, teacher, flag in row]
        assert tokens == pytest.approx(expected, rel=1e-6, abs=1e-5)


def test_the_expected_gradient_is_that_of_the_reverse_kl():
    """By enumeration, by the logit of a policy (.7, .3) with a teacher (.5, .5): the derivative of their KL, .1779326."""
    policy, slopes = (0.7, 0.3), (0.3, -0.7)  # of log pi
    expected = 0.0
    for token, chance in enumerate(policy):
        _, [[advantage]] = trained(opd(), [sample(0, [math.log(chance)])], [[math.log(0.5)]])
        expected += chance * advantage * slopes[token]
    assert expected == pytest.approx(-0.1779326, abs=5e-8)


def test_a_policy_that_is_its_teacher_stays():
    assert trained(opd(), [sample(0, [-1.0, -0.5])], [[-1.0, -0.5]])[1] == [[0.0, 0.0]]


def test_a_token_is_not_paid_for_those_after_it():
    _, [tokens] = trained(opd(), [sample(0, [-1.0, -1.0, -1.0])], [[-1.0, -1.0, -9.0]])
    assert tokens == [0.0, 0.0, -8.0]


def test_a_tools_token_is_not_judged_whatever_the_teacher_says_of_it():
    _, [tokens] = trained(opd(), [sample(0, [-1.0, -9.0], [True, False])], [[-1.5, float("nan")]])
    assert tokens == [-0.5, 0.0]


def test_a_sample_that_was_cut_off_is_masked_and_a_group_of_these_filtered():
    cut = [sample(n, [-1.0], finish_reason=FINISH_REASON_LENGTH) for n in range(2)]
    judged, _ = trained(opd(truncated="mask"), [cut[0], sample(1, [-1.0])], [[-2.0], [-2.0]])
    assert (judged.valid, judged.filtered) == ((False, True), False)
    assert trained(opd(truncated="mask"), cut, [[-2.0], [-2.0]])[0].reason == "0 of 2 samples are valid; an advantage needs one"
    assert trained(opd(), cut, [[-2.0], [-2.0]])[0].valid == (True, True)


@pytest.mark.parametrize("teachers", [[], [[-1.0]], [[-1.0], [-1.0, -1.0]]])
def test_log_probabilities_that_are_not_of_each_token_are_refused(teachers):
    with pytest.raises(ValueError, match="or of the teacher, which its run needs of each token"):
        trained(opd(), [sample(0, [-1.0]), sample(1, [-1.0])], teachers)

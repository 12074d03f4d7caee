"""The KL in the reward: exact numbers, TRL's advantages, and a verdict that does not depend on it."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus.algorithms import Algorithm
from gradbus.formats.tokens import pack_logprobs
from gradbus.spec import PRESETS, AlgorithmSpec
from gradbus.spec.presets import CRITICS
from gradbus.v1 import reward_pb2
from gradbus.v1.sample_pb2 import Sample, Span

TAKES_KL = sorted(set(PRESETS) - {"maxrl", "gdpo", "opd"})
BY_TOKEN = ("reinforce_pp", "remax", *CRITICS)
nats = st.floats(-8, 0, width=32)
groups = st.lists(
    st.tuples(st.floats(-5, 5), st.lists(st.tuples(nats, nats, st.booleans()), min_size=1, max_size=6)), min_size=2, max_size=5
)


@dataclass(frozen=True)
class Scored:
    reward: float
    status: int = reward_pb2.REWARD_STATUS_OK
    components: dict = field(default_factory=dict)


def algorithm_of(name, kl=0.5, **fields):
    return Algorithm(AlgorithmSpec(name=name, kl=kl, kl_place="reward", kl_estimator="k3", filter="none", **fields), 8)


def sample(n, logprobs, trainable=None):
    """A sample with a span for each token."""
    flags = trainable or [True] * len(logprobs)
    spans = [Span(start=t, end=t + 1, trainable=flag) for t, flag in enumerate(flags)]
    return Sample(sample_id=str(n), token_ids=bytes(4 * len(logprobs)), logprobs=pack_logprobs(logprobs), spans=spans)


def trained(algorithm, samples, rewards, references):
    """Group and token advantages as the trainer makes them."""
    kls = algorithm.token_kls(samples, [pack_logprobs(row) for row in references])
    judged = algorithm.group_advantages(samples, {str(n): Scored(reward) for n, reward in enumerate(rewards)}, kls)
    tokens = algorithm.token_advantages(judged, [len(one.logprobs) // 4 for one in samples], kls)
    return judged, [row.tolist() for row in tokens]


def drawn(rows):
    samples = [sample(n, [mu for mu, _, _ in row], [flag for _, _, flag in row]) for n, (_, row) in enumerate(rows)]
    return samples, [reward for reward, _ in rows], [[ref for _, ref, _ in row] for _, row in rows]


def test_reinforce_by_hand():
    """k1 = .5, (a tool's), -.25, 1; beta .5; R 2."""
    one = sample(0, [-1.0, -9.0, -1.25, -0.5], [True, False, True, True])
    _, [tokens] = trained(algorithm_of("reinforce_pp"), [one], [2.0], [[-1.5, float("nan"), -1.0, -1.5]])
    assert tokens == [2.0 - 0.625, 2.0 - 0.375, 2.0 - 0.375, 1.5]


def test_rloo_by_hand():
    """R' = 2 - .5 · 1.25, 1 - .5 · (-.5), 0: each against the mean of the others."""
    samples = [sample(0, [-1.0, -0.5]), sample(1, [-1.0]), sample(2, [-1.0, -3.0], [True, False])]
    judged, tokens = trained(algorithm_of("rloo"), samples, [2.0, 1.0, 0.0], [[-1.25, -1.5], [-0.5], [-1.0, 5.0]])
    assert judged.advantages == pytest.approx([0.75, 0.5625, -1.3125], abs=1e-15)
    assert tokens == [[0.75, 0.75], [0.5625], [-1.3125, -1.3125]]


@given(groups, st.floats(0.01, 3))
def test_reinforce_equals_a_double_sum_over_tokens(rows, beta):
    samples, rewards, references = drawn(rows)
    _, found = trained(algorithm_of("reinforce_pp", beta), samples, rewards, references)
    for tokens, (reward, row) in zip(found, rows, strict=True):
        for t, advantage in enumerate(tokens):
            later = sum(mu - ref for mu, ref, flag in row[t:] if flag)
            assert advantage == pytest.approx(reward - beta * later, rel=1e-6, abs=1e-5)


@given(groups, st.floats(0.01, 3))
def test_remax_subtracts_the_reward_of_the_greedy_sample_and_no_kl_of_it(rows, beta):
    samples, rewards, references = drawn(rows)
    judged, found = trained(algorithm_of("remax", beta), samples, rewards, references)
    assert judged.valid == (True,) * (len(rows) - 1) + (False,)
    for tokens, (reward, row) in zip(found[:-1], rows, strict=False):
        for t, advantage in enumerate(tokens):
            later = sum(mu - ref for mu, ref, flag in row[t:] if flag)
            assert advantage == pytest.approx(reward - rewards[-1] - beta * later, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize(("name", "size"), [("reinforce_pp", 1), ("rloo", 2), ("rloo", 3)])
def test_the_expected_gradient_is_that_of_the_kl(name, size):
    """By enumeration of all groups of answers of one token, by the logit of a policy (.7, .3) with a reference (.5, .5)."""
    policy, slopes = (0.7, 0.3), (0.3, -0.7)  # of log pi
    algorithm, gradient = algorithm_of(name, 1.0), 0.0
    for group in product(range(2), repeat=size):
        samples = [sample(n, [math.log(policy[token])]) for n, token in enumerate(group)]
        _, advantages = trained(algorithm, samples, [0.0] * size, [[math.log(0.5)]] * size)
        chance = math.prod(policy[token] for token in group)
        gradient += chance * sum(of[0] * slopes[token] for of, token in zip(advantages, group, strict=True)) / size
    assert gradient == pytest.approx(-0.1779326, abs=5e-8)


@settings(max_examples=20)  # of each of many presets
@given(groups)
@pytest.mark.parametrize("name", TAKES_KL)
def test_a_policy_that_is_its_reference_loses_nothing(name, rows):
    samples, rewards, _ = drawn(rows)
    same = [[mu for mu, _, _ in row] for _, row in rows]
    assert trained(algorithm_of(name), samples, rewards, same) == trained(algorithm_of(name, 0.0), samples, rewards, same)


@settings(max_examples=20)  # of each of many presets
@given(groups)
@pytest.mark.parametrize("name", TAKES_KL)
def test_the_verdict_is_the_one_that_is_made_before_the_reference_answers(name, rows):
    samples, rewards, references = drawn(rows)
    algorithm = algorithm_of(name)
    judged, _ = trained(algorithm, samples, rewards, references)
    early = algorithm.group_advantages(samples, {str(n): Scored(reward) for n, reward in enumerate(rewards)})
    counts = len(rows) - algorithm.greedy_samples
    assert (judged.filtered, judged.valid) == (early.filtered, early.valid) == (False, (True,) * counts + (False,) * (len(rows) - counts))


@pytest.mark.parametrize("name", sorted(set(TAKES_KL) - set(BY_TOKEN)))
def test_equal_rewards_of_different_kl_move_the_policy(name):
    judged, _ = trained(algorithm_of(name), [sample(0, [-1.0]), sample(1, [-1.0])], [1.0, 1.0], [[-2.0], [-1.0]])
    assert judged.advantages[0] < judged.advantages[1]


@pytest.mark.parametrize("references", [[], [[-1.0]], [[-1.0], [-1.0, -1.0]]])
def test_references_that_are_not_of_each_token_are_refused(references):
    with pytest.raises(ValueError, match="lacks log-probabilities of the base model or of the teacher"):
        trained(algorithm_of("rloo"), [sample(0, [-1.0]), sample(1, [-1.0])], [1.0, 0.0], references)


def test_only_a_kl_in_the_reward_reads_the_log_probabilities():
    for algorithm in (Algorithm(AlgorithmSpec(kl=0.1), 8), algorithm_of("ppo", 0.0)):
        assert algorithm.token_kls([sample(0, [-1.0])], []) == ()
        assert not algorithm.kl_in_reward


def test_a_kl_of_the_whole_step_is_left_to_the_step():
    controlled = algorithm_of("reinforce_pp", kl_control={"target": 0.1})
    assert (controlled.kl_in_reward, controlled.kl_by_step, algorithm_of("reinforce_pp").kl_by_step) == (True, True, False)
    _, [tokens] = trained(controlled, [sample(0, [-1.0, -2.0])], [2.0], [[-3.0, -1.0]])
    assert tokens == [2.0, 2.0]
    assert not controlled.has_sample_advantages


def test_a_sample_has_an_advantage_where_its_tokens_have_one():
    named = {name: Algorithm(AlgorithmSpec(name=name), 8).has_sample_advantages for name in PRESETS}
    assert {name for name, has in named.items() if not has} == {"reinforce_pp", "reinforce_pp_baseline", "gdpo", *CRITICS}
    assert not algorithm_of("reinforce_pp", whiten="none").has_sample_advantages
    assert algorithm_of("reinforce_pp", 0.0, whiten="none").has_sample_advantages


def test_rloo_has_trls_advantages():
    """Two groups of three, by the method of TRL's trainer that scores a batch; its model is a table of log-probabilities."""
    random = np.random.default_rng(5)
    lengths, beta = [3, 1, 4, 2, 5, 4], 0.05
    policy, base = random.normal(-2.0, 1.0, (2, 6, max(lengths))).astype(np.float32)
    rewards = random.normal(0.0, 1.0, 6).astype(np.float32)
    tables = {"policy": torch.from_numpy(policy), "base": torch.from_numpy(base)}
    model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", process_index=0, reduce=lambda found, reduction: found),
        model=model,
        ref_model="base",
        beta=beta,
        num_generations=3,
        normalize_advantages=False,
        reward_clip_range=None,
        mask_truncated_completions=False,
        pad_to_multiple_of=None,
        processing_class=None,
        reward_weights=torch.ones(1),
        reward_func_names=["reward"],
        args=SimpleNamespace(per_device_train_batch_size=6, gradient_checkpointing_kwargs=None),
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _generate=lambda prompts: ([[1]] * 6, [[2] * length for length in lengths], [""] * 6),
        _get_per_token_logps_and_entropies=lambda asked, *_, **__: (tables["base" if asked == "base" else "policy"], None, None),
        _calculate_rewards=lambda *_: torch.from_numpy(rewards)[:, None],
        _metrics=defaultdict(lambda: defaultdict(list)),
        _logs=defaultdict(list, rewards=defaultdict(list)),
        _pending_extra_logs={},
        _pending_metrics={},
    )
    expected = trl.RLOOTrainer._generate_and_score_completions(trainer, [{"prompt": ""}] * 6)["advantages"].tolist()
    for first in (0, 3):
        rows = range(first, first + 3)
        samples = [sample(n, policy[row, : lengths[row]].tolist()) for n, row in enumerate(rows)]
        references = [base[row, : lengths[row]].tolist() for row in rows]
        judged, _ = trained(algorithm_of("rloo", beta), samples, [float(rewards[row]) for row in rows], references)
        assert judged.advantages == pytest.approx(expected[first : first + 3], rel=1e-5, abs=1e-6)

"""Generalised advantages: exact numbers, a loop over tokens, and what must not change them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.spec import CriticSpec
from gradbus_trainer.learners.critic.gae import generalized_advantages, policy_lambda, vtrace_corrections

tokens = st.lists(st.tuples(st.floats(-5, 5), st.floats(-3, 3)), max_size=9)
sequences = st.lists(st.tuples(tokens, st.floats(0, 1)), min_size=1, max_size=5)


def arrays(rows):
    return [np.array(row, dtype=np.float64) for row in rows]


def split(rows):
    """Values and rewards by token, and lambdas."""
    return (
        arrays([[value for value, _ in row] for row, _ in rows]),
        arrays([[r for _, r in row] for row, _ in rows]),
        [lam for _, lam in rows],
    )


def written_out(values, rewards, lam, gamma):
    """Equation 16 of the paper as a double sum."""
    after = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(len(values))]
    return [sum((gamma * lam) ** (s - t) * deltas[s] for s in range(t, len(values))) for t in range(len(values))]


def test_three_tokens_with_a_reward_at_the_end():
    [advantages] = generalized_advantages(arrays([[0.5, 0.6, 0.7]]), arrays([[0.0, 0.0, 1.0]]), [0.95])
    assert advantages.tolist() == pytest.approx([0.46575, 0.385, 0.3], abs=1e-12)
    assert (advantages + np.array([0.5, 0.6, 0.7])).tolist() == pytest.approx([0.96575, 0.985, 1.0], abs=1e-12)


@given(sequences, st.floats(0, 1))
def test_many_sequences_at_once_equal_the_sum_of_each(rows, gamma):
    values, rewards, lambdas = split(rows)
    found = generalized_advantages(values, rewards, lambdas, gamma)
    for advantages, row, reward, lam in zip(found, values, rewards, lambdas, strict=True):
        assert advantages.tolist() == pytest.approx(written_out(row, reward, lam, gamma), rel=1e-12, abs=1e-12)


@given(sequences)
def test_a_sequences_advantages_do_not_depend_on_its_neighbours(rows):
    values, rewards, lambdas = split(rows)
    together = generalized_advantages(values, rewards, lambdas)
    alone = [generalized_advantages([row], [reward], [lam])[0] for row, reward, lam in zip(values, rewards, lambdas, strict=True)]
    assert [row.tolist() for row in together] == [row.tolist() for row in alone]


def test_lambda_of_one_gives_the_return_minus_the_value():
    [advantages] = generalized_advantages(arrays([[0.25, -2.0, 8.0]]), arrays([[0.0, 0.0, 1.5]]), [1.0])
    assert advantages.tolist() == pytest.approx([1.25, 3.5, -6.5], abs=1e-12)
    [moved] = generalized_advantages(arrays([[7.25, 5.0, 15.0]]), arrays([[0.0, 0.0, 8.5]]), [1.0])
    assert moved.tolist() == pytest.approx(advantages.tolist(), abs=1e-12), "a constant of values and reward drops out"


def test_rewards_of_single_tokens_enter_their_own_deltas():
    """By hand: deltas .1 - .02, .1 + .01, .3 with lambda 0.5."""
    [advantages] = generalized_advantages(arrays([[0.5, 0.6, 0.7]]), arrays([[-0.02, 0.01, 1.0]]), [0.5])
    assert advantages.tolist() == pytest.approx([0.08 + 0.5 * 0.26, 0.11 + 0.5 * 0.3, 0.3], abs=1e-12)


@pytest.mark.parametrize(
    ("alpha", "length", "lam"),
    [(0.05, 100, 0.8), (0.05, 1000, 0.98), (0.05, 20, 0.0), (0.05, 3, 0.0), (1.5, 100, 0.99333), (1.5, 1000, 0.99933)],
)
def test_lambda_grows_with_the_length(alpha, length, lam):
    assert policy_lambda(CriticSpec(length_alpha=alpha), length) == pytest.approx(lam, abs=5e-6)


def test_a_fixed_lambda_is_the_same_for_all_lengths():
    assert [policy_lambda(CriticSpec(), length) for length in (1, 1000)] == [0.95, 0.95]


steps = st.lists(st.tuples(st.floats(-5, 5), st.floats(-3, 3), st.floats(-4, 4)), min_size=1, max_size=7)


def vtrace_written_out(values, rewards, ratios, lam, gamma):
    """v_t - V_t as the sum of equation 1: of delta_s, weighted by the product of c between t and s, and by rho_s."""
    after = [*values[1:], 0.0]
    rho = [min(1.0, float(np.exp(x))) for x in ratios]
    delta = [rho[s] * (rewards[s] + gamma * after[s] - values[s]) for s in range(len(values))]

    def trace(t, s):
        product = 1.0
        for i in range(t, s):
            product *= lam * min(1.0, float(np.exp(ratios[i])))
        return product

    return [sum(gamma ** (s - t) * trace(t, s) * delta[s] for s in range(t, len(values))) for t in range(len(values))]


@given(steps, st.floats(0, 1), st.floats(0, 1))
def test_vtrace_is_the_sum_of_its_paper(rows, lam, gamma):
    values, rewards, ratios = np.array(rows, dtype=np.float64).T
    found = vtrace_corrections(values, rewards, ratios, lam, gamma)
    assert found.tolist() == pytest.approx(vtrace_written_out(values, rewards, ratios, lam, gamma), rel=1e-12, abs=1e-12)


def test_vtrace_of_three_tokens_of_which_the_second_became_half_as_likely():
    """By hand: deltas .1, .5 · .1, .3 and traces 1, .5, 1; a token that became more likely counts once."""
    found = vtrace_corrections(*arrays([[0.5, 0.6, 0.7], [0.0, 0.0, 1.0], [0.0, np.log(0.5), np.log(3.0)]]), 1.0)
    assert found.tolist() == pytest.approx([0.1 + 0.05 + 0.15, 0.05 + 0.15, 0.3], abs=1e-12)


@given(steps, st.floats(0, 1), st.floats(0, 1))
def test_vtrace_on_policy_is_gae(rows, lam, gamma):
    values, rewards, _ = np.array(rows, dtype=np.float64).T
    [advantages] = generalized_advantages([values], [rewards], [lam], gamma)
    found = vtrace_corrections(values, rewards, np.zeros_like(values), lam, gamma)
    assert found.tolist() == pytest.approx(advantages.tolist(), rel=1e-12, abs=1e-12)

"""Controllers: exact numbers, the papers' rules over a whole run, and a state that any step can be resumed from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradbus.algorithms import Coefficients, Observed, after_step, step_coefficients
from gradbus.spec import AlgorithmSpec

KL = {"kl": 0.1, "kl_control": {"target": 0.05, "horizon": 1000}}
ENTROPY = {"entropy": 0.01, "entropy_control": {"target": 0.5, "delta": 0.004, "max_coefficient": 0.02}}
SAMPLES = 256
histories = st.lists(st.tuples(st.floats(-1, 5), st.floats(0, 1)), max_size=30)


def run(spec, history, state=None):
    """The coefficients of each step and of the one after the last, and the last state."""
    state, used = state or {}, []
    for kl, entropy in history:
        used.append(step_coefficients(spec, state))
        state = after_step(spec, state, Observed(kl, entropy, SAMPLES))
    return [*used, step_coefficients(spec, state)], state


def test_without_a_controller_there_is_no_state_and_no_coefficient():
    assert run(AlgorithmSpec(kl=0.1, entropy=0.1), [(1.0, 1.0)]) == ([None, None], {})


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.05, 1.0), (0.055, 1.0256), (0.045, 0.9744), (0.06, 1.0512), (9.0, 1.0512), (0.0, 0.9488), (-1.0, 0.9488)]
)
def test_the_weight_of_the_kl_grows_by_its_relative_error_up_to_a_fifth(kl, factor):
    """256 samples of a horizon of 1000: e = .1 changes it by .0256."""
    used, _ = run(AlgorithmSpec(**KL), [(kl, 0.0)])
    assert used == [Coefficients(0.1, 0.0), Coefficients(pytest.approx(0.1 * factor), 0.0)]


@given(histories)
def test_the_weight_of_the_kl_follows_the_papers_loop(history):
    used, _ = run(AlgorithmSpec(**KL), history)
    beta, expected = 0.1, [0.1]
    for kl, _ in history:
        error = (kl - 0.05) / 0.05
        beta *= 1 + (0.2 if error > 0.2 else -0.2 if error < -0.2 else error) * SAMPLES / 1000
        expected.append(beta)
    assert [one.kl for one in used] == pytest.approx(expected, rel=1e-12)
    assert all(one.kl > 0.0 and one.entropy == 0.0 for one in used)


def test_the_entropy_bonus_is_used_only_while_the_entropy_is_at_or_below_its_target():
    """It moves by .004 a step in any case; the first step knows no entropy."""
    used, state = run(AlgorithmSpec(**ENTROPY), [(0.0, 0.6), (0.0, 0.4), (0.0, 0.5), (0.0, 0.4), (0.0, 0.9)])
    assert [one.entropy for one in used] == pytest.approx([0.0, 0.0, 0.01, 0.01, 0.014, 0.0])
    assert state == {"entropy": pytest.approx(0.010), "entropy_seen": 0.9}


@given(histories)
def test_the_weight_of_the_entropy_follows_the_papers_loop_within_its_bounds(history):
    used, _ = run(AlgorithmSpec(**ENTROPY), history)
    weight, expected = 0.01, [0.0]
    for _, entropy in history:
        weight += 0.004 if entropy < 0.5 else -0.004 if entropy > 0.5 else 0.0
        weight = max(0.0, min(0.02, weight))
        expected.append(weight if entropy <= 0.5 else 0.0)
    assert [one.entropy for one in used] == pytest.approx(expected, abs=1e-12)
    assert all(one.kl == 0.0 for one in used)


@given(histories, st.integers(0, 30))
def test_a_run_that_goes_on_from_the_state_of_any_step_has_the_same_bits(history, at):
    spec = AlgorithmSpec(**KL, **ENTROPY)
    straight, end = run(spec, history)
    _, saved = run(spec, history[:at])
    resumed, same_end = run(spec, history[at:], dict(saved))
    assert resumed == straight[min(at, len(history)) :]
    assert same_end == end
    assert all(math.isfinite(value) for value in end.values())

"""The loss and its gradients against a hand-written float64 reference."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus.spec import AlgorithmSpec
from gradbus_kernels.grpo_loss import PolicyTokens, grpo_loss, k3, token_weights


def tokens(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda scale: torch.randn(count, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    logprobs = (draw(1.0) - 3.0).requires_grad_()
    trained = torch.rand(count, generator=generator) < 0.8
    weights = torch.where(trained, torch.rand(count, generator=generator, dtype=torch.float64), 0.0)
    entropy_weights = torch.where(trained, 1.0 / max(1, int(trained.sum())), 0.0).double()
    behaviour = logprobs.detach() + draw(0.4)
    return logprobs, draw(1.0).abs(), PolicyTokens(behaviour, draw(1.0), weights, entropy_weights, logprobs.detach() + draw(0.3))


def reference(logprobs, entropy, given_tokens, algorithm):
    """Loss and its derivative by log-probability, one token after another, by the formulas' cases."""
    low, high = 1 - algorithm.clip[0], 1 + algorithm.clip[1]
    total, gradient = 0.0, []
    columns = (logprobs, entropy, given_tokens.behaviour_logprobs, given_tokens.advantages, given_tokens.weights)
    others = (given_tokens.entropy_weights, given_tokens.reference_logprobs)
    for logp, h, mu, a, w, hw, ref in zip(*(column.tolist() for column in (*columns, *others)), strict=True):
        if algorithm.importance == "decoupled":
            correction = min(math.exp(logp - mu), 2.0)
            gain, slope = correction * a, correction * a
        else:
            ratio = math.exp(logp - mu)
            inside = ratio <= high if a >= 0 else ratio >= low
            gain, slope = (ratio * a, ratio * a) if inside else (min(max(ratio, low), high) * a, 0.0)
        kl = math.exp(ref - logp) - (ref - logp) - 1
        total += w * (-gain + algorithm.kl * kl) - hw * algorithm.entropy * h
        gradient.append(w * (-slope + algorithm.kl * (1 - math.exp(ref - logp))))
    return total, gradient


algorithms = st.builds(
    AlgorithmSpec,
    importance=st.sampled_from(["behaviour", "decoupled"]),
    clip=st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 2.0)),
    kl=st.sampled_from([0.0, 0.04]),
    entropy=st.sampled_from([0.0, 0.01]),
)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(0, 1000), algorithms)
def test_loss_and_gradient_equal_the_written_out_reference(count, seed, algorithm):
    logprobs, entropy, given_tokens = tokens(count, seed)
    loss = grpo_loss(logprobs, entropy, given_tokens, algorithm)
    loss.total.backward()
    total, gradient = reference(logprobs, entropy, given_tokens, algorithm)
    assert loss.total.item() == pytest.approx(total, rel=1e-10, abs=1e-12)
    assert logprobs.grad.tolist() == pytest.approx(gradient, rel=1e-10, abs=1e-12)


def test_decoupled_has_the_gradient_of_a_capped_importance_weight():
    logprobs = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    ones, zeros = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    given_tokens = PolicyTokens(torch.tensor([-1.5, -9.0], dtype=torch.float64), ones, ones, ones)
    grpo_loss(logprobs, zeros, given_tokens, AlgorithmSpec(importance="decoupled", clip=(0.1, 0.1))).total.backward()
    assert logprobs.grad.tolist() == pytest.approx([-math.exp(0.5), -2.0])


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_tokens_without_weight_may_hold_anything(kl):
    logprobs, entropy, clean = tokens(8)
    dirty = clean.weights == 0
    assert dirty.any()
    spoilt = {
        name: torch.where(dirty, math.nan, tensor)
        for name, tensor in (("behaviour_logprobs", clean.behaviour_logprobs), ("advantages", clean.advantages))
    }
    algorithm = AlgorithmSpec(kl=kl, entropy=0.01)
    one, other = (grpo_loss(logprobs, entropy, given_tokens, algorithm) for given_tokens in (clean, replace(clean, **spoilt)))
    assert one.total == other.total


def test_an_extreme_ratio_stays_finite():
    logprobs = torch.tensor([-1.0], requires_grad=True)
    one = torch.ones(1)
    loss = grpo_loss(logprobs, one, PolicyTokens(torch.tensor([-500.0]), -one, one, one, torch.tensor([400.0])), AlgorithmSpec(kl=0.1))
    loss.total.backward()
    assert loss.total.isfinite()
    assert logprobs.grad.isfinite().all()


def test_a_kl_without_reference_is_refused():
    with pytest.raises(ValueError, match="reference"):
        k3(torch.zeros(1), None)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.sampled_from(["token", "sequence"]))
def test_weights_of_a_step_add_up_to_one(counts, aggregate):
    weights = token_weights(counts, aggregate)
    assert math.fsum(weight * count for weight, count in zip(weights, counts, strict=True)) == pytest.approx(1.0)
    shares = {round(weight * (count if aggregate == "sequence" else 1), 12) for weight, count in zip(weights, counts, strict=True) if count}
    assert len(shares) == 1

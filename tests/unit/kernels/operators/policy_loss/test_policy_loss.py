"""The loss and its gradients against a hand-written float64 reference."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradbus_kernels.operators import PolicySettings, PolicyTokens, policy_loss, token_weights


def tokens(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda scale: torch.randn(count, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    logprobs = (draw(1.0) - 3.0).requires_grad_()
    trained = torch.rand(count, generator=generator) < 0.8
    weights = torch.where(trained, torch.rand(count, generator=generator, dtype=torch.float64), 0.0)
    entropy_weights = torch.where(trained, 1.0 / max(1, int(trained.sum())), 0.0).double()
    behaviour = logprobs.detach() + draw(0.4)
    return logprobs, draw(1.0).abs(), PolicyTokens(behaviour, draw(1.0), weights, entropy_weights, logprobs.detach() + draw(0.3))


@pytest.mark.parametrize("kl", [0.0, 0.04])
def test_grpos_bits_are_those_of_its_formula_in_this_order(kl):
    """A run that is trained again must give the same weights."""
    logprobs, entropies, given_tokens = tokens(40)
    loss = policy_loss(logprobs, entropies, given_tokens, PolicySettings(low=0.2, high=0.28, kl=kl, entropy=0.01))
    (found,) = torch.autograd.grad(loss.total, logprobs)
    ratio = (logprobs - given_tokens.behaviour_logprobs).clamp(-20.0, 20.0).exp()
    pairs = ratio * given_tokens.advantages, ratio.clamp(1.0 - 0.2, 1.0 + 0.28) * given_tokens.advantages
    total = -(torch.minimum(*pairs) * given_tokens.weights).sum()
    if kl:
        apart = (given_tokens.reference_logprobs - logprobs).clamp(-20.0, 20.0)
        total = total + kl * ((apart.expm1() - apart) * given_tokens.weights).sum()
    total = total - 0.01 * (entropies * given_tokens.entropy_weights).sum()
    assert torch.equal(loss.total, total)
    assert torch.equal(found, *torch.autograd.grad(total, logprobs))
    outside = [(ratio < 1.0 - 0.2), (ratio > 1.0 + 0.28)]
    assert [loss.ratio.clipped_low, loss.ratio.clipped_high] == [(side * given_tokens.entropy_weights).sum() for side in outside]


def test_decoupled_has_the_gradient_of_a_capped_importance_weight():
    logprobs = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    ones, zeros = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    given_tokens = PolicyTokens(torch.tensor([-1.5, -9.0], dtype=torch.float64), ones, ones, ones)
    policy_loss(logprobs, zeros, given_tokens, PolicySettings(low=0.1, high=0.1, importance="decoupled")).total.backward()
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
    settings = PolicySettings(kl=kl, entropy=0.01)
    one, other = (policy_loss(logprobs, entropy, given_tokens, settings) for given_tokens in (clean, replace(clean, **spoilt)))
    assert one.total == other.total


def test_an_extreme_ratio_stays_finite():
    logprobs = torch.tensor([-1.0], requires_grad=True)
    one = torch.ones(1)
    loss = policy_loss(logprobs, one, PolicyTokens(torch.tensor([-500.0]), -one, one, one, torch.tensor([400.0])), PolicySettings(kl=0.1))
    loss.total.backward()
    assert loss.total.isfinite()
    assert logprobs.grad.isfinite().all()


def test_what_the_settings_need_and_is_missing_is_named():
    one = torch.ones(3)
    with pytest.raises(ValueError, match=r"tokens\.reference_logprobs: are missing"):
        policy_loss(one, one, PolicyTokens(one, one, one, one), PolicySettings(kl=0.1))
    with pytest.raises(ValueError, match=r"tokens\.nll_weights: are missing"):
        policy_loss(one, one, PolicyTokens(one, one, one, one), PolicySettings(nll=0.1))
    with pytest.raises(ValueError, match=r"tokens\.advantages: has shape \(2,\); pass \(3\)"):
        policy_loss(one, one, PolicyTokens(one, one[:2], one, one), PolicySettings())
    with pytest.raises(ValueError, match=r"longest: is None"):
        token_weights([1], "constant")


def test_tokens_without_weight_have_no_gradient_whatever_they_hold():
    logprobs, entropy, clean = tokens(8)
    spoilt = torch.where(clean.weights == 0, math.nan, clean.behaviour_logprobs)
    policy_loss(logprobs, entropy, replace(clean, behaviour_logprobs=spoilt), PolicySettings()).total.backward()
    assert logprobs.grad.isfinite().all()
    assert (logprobs.grad[clean.weights == 0] == 0.0).all()


def test_the_summary_of_ratios_is_by_share_of_the_tokens_that_count():
    behaviour = torch.tensor([0.5, 1.0, 4.0, 99.0]).log().neg()
    share = torch.tensor([0.25, 0.25, 0.5, 0.0])
    loss = policy_loss(torch.zeros(4), torch.ones(4), PolicyTokens(behaviour, torch.ones(4), share, share), PolicySettings())
    summary = (loss.ratio.mean, loss.ratio.least, loss.ratio.most, loss.ratio.clipped_low, loss.ratio.clipped_high)
    assert [number.item() for number in summary] == pytest.approx([2.375, 0.5, 4.0, 0.25, 0.5])
    assert loss.ratios.tolist() == pytest.approx([0.5, 1.0, 4.0, 1.0])
    assert loss.entropy == 1.0


def test_cispo_has_the_gradient_of_a_ratio_bounded_above_alone():
    logprobs = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    ones = torch.ones(3, dtype=torch.float64)
    behaviour = torch.tensor([-1.0, -3.0, 2.0], dtype=torch.float64)
    policy_loss(logprobs, ones, PolicyTokens(behaviour, ones, ones, ones), PolicySettings(trust_region="cap", low=1.0)).total.backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, -1.2, -math.exp(-3.0)])


def test_a_sequence_has_one_ratio_the_geometric_mean_over_its_trained_tokens():
    logprobs = torch.tensor([0.1, 0.3, 9.0, 0.9], dtype=torch.float64, requires_grad=True)
    zeros, ones = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    given_tokens = PolicyTokens(zeros, ones, weights, weights, sequences=torch.tensor([0, 0, 0, 1]))
    loss = policy_loss(logprobs, zeros, given_tokens, PolicySettings(high=0.5, ratio="sequence"))
    loss.total.backward()
    assert loss.policy.item() == pytest.approx(-2 * math.exp(0.2) - 1.5)
    assert logprobs.grad.tolist() == pytest.approx([-math.exp(0.2), -math.exp(0.2), 0.0, 0.0])


def test_a_constant_weight_does_not_look_at_lengths():
    assert token_weights([1, 0, 7], "constant", 10) == [1 / 30, 0.0, 1 / 30]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.sampled_from(["token", "sequence"]))
def test_weights_of_a_step_add_up_to_one(counts, aggregate):
    weights = token_weights(counts, aggregate)
    assert math.fsum(weight * count for weight, count in zip(weights, counts, strict=True)) == pytest.approx(1.0)
    shares = {round(weight * (count if aggregate == "sequence" else 1), 12) for weight, count in zip(weights, counts, strict=True) if count}
    assert len(shares) == 1


def test_the_sequence_of_a_token_that_is_not_used_may_be_anything():
    logprobs, weights = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([0.5, 0.5, 0.0])
    tokens = PolicyTokens(logprobs + 0.1, torch.ones(3), weights, weights, sequences=torch.tensor([0, 1, -1]))
    whole = policy_loss(logprobs, logprobs, tokens, PolicySettings(ratio="sequence"))
    used = policy_loss(logprobs[:2], logprobs[:2], tokens.at(slice(0, 2)), PolicySettings(ratio="sequence"))
    assert whole.total == used.total

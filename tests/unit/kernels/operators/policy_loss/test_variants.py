"""What holds between the variants of the loss, and exact numbers."""

import math
from dataclasses import replace

import pytest
import torch

from gradbus_kernels.operators import Curves, PolicySettings, PolicyTokens, policy_loss


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def slopes(log_ratios, advantages, settings, weights=None, sequences=None, behaviour=None):
    """The gradient by log-probability, negated: h · A of each token."""
    behaviour = torch.full_like(log_ratios, -1.5) if behaviour is None else behaviour
    logprobs = (behaviour + log_ratios).requires_grad_()
    weights = torch.ones_like(log_ratios) if weights is None else weights
    sequences = torch.zeros(len(log_ratios), dtype=torch.int64) if sequences is None else sequences
    tokens = PolicyTokens(behaviour, advantages, weights, weights, behaviour, sequences)
    loss = policy_loss(logprobs, torch.zeros_like(behaviour), tokens, settings)
    loss.total.backward()
    return -logprobs.grad, loss


@pytest.mark.parametrize("importance", ["behaviour", "decoupled", "none"])
def test_at_a_ratio_of_one_every_region_has_the_gradient_of_reinforce(region, importance):
    advantages = doubles(1.0, -0.5, 0.0, 2.0)
    dual = 3.0 if region == "clip" else None
    masks = {"sequence_mask": (0.99, 1.01), "off_policy_mask": 0.01}
    settings = PolicySettings(trust_region=region, low=0.1, high=0.1, dual=dual, importance=importance, **masks)
    found, loss = slopes(torch.zeros(4, dtype=torch.float64), advantages, settings)
    assert found.tolist() == pytest.approx(advantages.tolist(), rel=1e-15)
    assert (loss.ratio.clipped_low, loss.ratio.clipped_high) == (0.0, 0.0)


@pytest.mark.parametrize("region", ["clip", "log_clip", "gamma", "none"])
def test_an_answer_of_one_token_has_the_same_ratio_on_every_level(region):
    log_ratios, advantages = doubles(0.1, -0.4, 0.3, 0.9, -0.1), doubles(1.0, -1.0, -0.5, 2.0, 1.0)
    found = [
        slopes(log_ratios, advantages, PolicySettings(trust_region=region, ratio=ratio), sequences=torch.arange(5))
        for ratio in ("token", "sequence", "product")
    ]
    for gradient, loss in found[1:]:
        assert torch.equal(gradient, found[0][0])
        assert (loss.total, loss.ratio.clipped_low, loss.ratio.clipped_high) == (
            found[0][1].total,
            found[0][1].ratio.clipped_low,
            found[0][1].ratio.clipped_high,
        )


def test_decoupled_is_in_gradient_the_cap_from_zero_to_two():
    log_ratios = doubles(-5.0, -0.3, 0.0, 0.5, 0.69, 0.7, 8.0)
    advantages = doubles(1.0, -1.0, 0.5, 2.0, -0.1, 1.0, -3.0)
    decoupled, _ = slopes(log_ratios, advantages, PolicySettings(importance="decoupled"))
    cap, _ = slopes(log_ratios, advantages, PolicySettings(trust_region="cap", low=1.0, high=1.0))
    assert decoupled.tolist() == pytest.approx(cap.tolist(), rel=1e-14)


def test_a_sequences_ratio_is_the_geometric_mean_and_its_product_the_exponential_of_the_sum():
    log_ratios, ones = doubles(0.1, -0.2, 0.4), doubles(1.0, 1.0, 1.0)
    _, mean = slopes(log_ratios, ones, PolicySettings(trust_region="none", ratio="sequence"))
    _, product = slopes(log_ratios, ones, PolicySettings(trust_region="none", ratio="product"))
    assert mean.policy.item() / -3.0 == pytest.approx(1.1051709, abs=5e-8)
    assert product.policy.item() / -3.0 == pytest.approx(math.exp(0.3), rel=1e-15)


@pytest.mark.parametrize("region", ["clip", "log_clip", "none"])
@pytest.mark.parametrize("ratio", ["sequence", "product"])
def test_tokens_of_a_sequence_with_advantages_of_their_own_are_moved_by_these(region, ratio):
    """GSPO-token (arXiv:2507.18071, equation 14): the sequence's ratio, and the gradient of the token's own log-probability."""
    log_ratios, advantages = doubles(0.1, -0.2, 0.31, 0.05), doubles(1.0, -1.0, 0.25, 2.0)
    numbers, weights = torch.tensor([0, 0, 0, 1]), doubles(1.0, 1.0, 1.0, 0.5)
    settings = PolicySettings(trust_region=region, ratio=ratio, low=0.9, high=0.9)
    found, loss = slopes(log_ratios, advantages, settings, weights, numbers)
    joined, factor = (0.07, 1.0) if ratio == "sequence" else (0.21, 3.0)
    first, second = math.exp(joined), math.exp(0.05)
    assert found.tolist() == pytest.approx([first * factor, -first * factor, first * factor * 0.25, second], rel=1e-14)
    assert loss.policy.item() == pytest.approx(-(0.25 * first + second), rel=1e-14)


def test_a_ratio_of_sequences_is_what_the_shares_count():
    """Each token is far outside of GSPO's bounds, and their sequence is inside."""
    bounds = {"low": 3e-4, "high": 4e-4}
    apart = doubles(0.5, -0.5)
    _, tokens = slopes(apart, doubles(1.0, 1.0), PolicySettings(**bounds), weights=doubles(0.5, 0.5))
    _, inside = slopes(apart, doubles(1.0, 1.0), PolicySettings(ratio="sequence", **bounds), weights=doubles(0.5, 0.5))
    _, above = slopes(apart + 0.001, doubles(1.0, 1.0), PolicySettings(ratio="sequence", **bounds), weights=doubles(0.5, 0.5))
    shares = [(loss.ratio.clipped_low.item(), loss.ratio.clipped_high.item()) for loss in (tokens, inside, above)]
    assert shares == [(0.5, 0.5), (0.0, 0.0), (0.0, 1.0)]


def test_the_soft_gate_is_one_at_a_ratio_of_one_and_has_the_papers_height():
    found, _ = slopes(doubles(0.0, math.log(1.3)), doubles(1.0, 1.0), PolicySettings(trust_region="soft", curves=Curves((1.0, 9.0))))
    assert found.tolist() == pytest.approx([1.0, 1.27118], abs=5e-6)


def test_the_gamma_weight_of_a_sequence_is_the_papers_and_fades_on_both_sides():
    """W = 1.3 of two tokens; e^3 1.3^2 e^-3.9 and e^2 1.3^3 e^-2.6, and each token's own weight in the mean."""
    halves, settings = doubles(math.log(1.3) / 2, math.log(1.3) / 2), PolicySettings(trust_region="gamma", ratio="product")
    rising, _ = slopes(halves, doubles(1.0, 1.0), settings, weights=doubles(0.5, 0.25))
    falling, _ = slopes(halves, doubles(-1.0, -1.0), settings, weights=doubles(0.5, 0.25))
    assert rising.tolist() == pytest.approx([0.5 * 0.687103, 0.25 * 0.687103], abs=5e-7)
    assert falling.tolist() == pytest.approx([-0.5 * 1.205739, -0.25 * 1.205739], abs=5e-7)
    for far in (-20.0, 5.0, 20.0):
        found, _ = slopes(doubles(far), doubles(1.0), settings)
        assert 0.0 <= found.item() < 1e-15


def test_a_change_in_probability_is_refused_only_further_away():
    """A rare token may double; a likely one may not move by .3, but may come back."""
    before, after = doubles(0.01, 0.6, 0.6, 0.9, 0.9).log(), doubles(0.02, 0.9, 0.9, 0.6, 0.6).log()
    advantages = doubles(1.0, 1.0, -1.0, -1.0, 1.0)
    settings = PolicySettings(trust_region="mass", low=0.2, high=0.2)
    found, loss = slopes(after - before, advantages, settings, weights=doubles(*[0.2] * 5), behaviour=before)
    assert (found / 0.2).tolist() == pytest.approx([2.0, 0.0, -1.5, 0.0, 2 / 3])
    assert (loss.ratio.clipped_low.item(), loss.ratio.clipped_high.item()) == pytest.approx((0.2, 0.2))


KL = 0.7 * math.log(1.4) + 0.3 * math.log(0.6)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [("k2", 0.0787662, 0.1779326), ("k3", KL, 0.2), ("unbiased", KL, 0.1779326)],
    ids=["k2", "k3", "unbiased"],
)
@pytest.mark.parametrize("behaviour", [(0.7, 0.3), (0.4, 0.6)], ids=["on-policy", "off-policy"])
def test_the_gradient_of_the_kl_over_both_arms_of_a_bandit(estimator, value, slope, behaviour):
    """pi = (.7, .3), ref = (.5, .5): the true gradient by the logit is .1779326, and k3's on pi's own samples is the other direction's."""
    logit = torch.tensor(math.log(0.7 / 0.3), dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(torch.stack((logit, torch.zeros_like(logit))), 0)
    mu = doubles(*behaviour)
    # Every arm once, with its probability as its weight: the mean over samples of mu.
    tokens = PolicyTokens(mu.log(), doubles(0.0, 0.0), mu, mu, doubles(0.5, 0.5).log())
    loss = policy_loss(logprobs, doubles(0.0, 0.0), tokens, PolicySettings(kl=1.0, kl_estimator=estimator))
    loss.total.backward()
    assert pytest.approx(0.0822829, abs=5e-8) == KL
    if behaviour == (0.7, 0.3) or estimator == "unbiased":
        assert (loss.kl.item(), logit.grad.item()) == pytest.approx((value, slope), abs=5e-8)
    else:
        assert logit.grad.item() != pytest.approx(0.1779326, abs=1e-3)


def test_the_drift_pulls_every_token_back_to_the_policy_that_sampled_it():
    """Also one that the trust region drops, and the one that a mask of sequences leaves out."""
    log_ratios = doubles(2.0, -0.1, 0.0)
    settings = PolicySettings(trust_region="band", low=0.5, high=0.5, sequence_mask=(0.99, 1.01), drift=1e-3)
    found, loss = slopes(log_ratios, doubles(1.0, 1.0, 1.0), settings, weights=doubles(0.25, 0.5, 0.25))
    assert found.tolist() == pytest.approx([-2e-3 * 0.25 * 2.0, 2e-3 * 0.5 * 0.1, 0.0])
    assert (loss.drift.item(), loss.total.item()) == (pytest.approx(0.25 * 4.0 + 0.5 * 0.01), pytest.approx(1e-3 * 1.005))
    plain = slopes(log_ratios, doubles(1.0, 1.0, 1.0), PolicySettings())[1]
    assert plain.drift == 0.0


def test_without_a_ratio_the_drift_makes_dro_whose_tokens_stop_where_their_log_ratio_is_the_advantage_by_beta():
    """arXiv:2405.19107 by token, as Tinker has it: A log pi - beta/2 (log rho)², so the slope is A - beta log rho."""
    log_ratios, advantages, beta = doubles(0.0, 2.0, -2.0, 10.0, 0.1), doubles(1.0, 1.0, 1.0, 1.0, -0.5), 0.1
    found, loss = slopes(log_ratios, advantages, PolicySettings(importance="none", drift=beta / 2))
    assert found.tolist() == pytest.approx([1.0, 0.8, 1.2, 0.0, -0.51])
    objective = advantages * (log_ratios - 1.5) - beta / 2 * log_ratios.square()
    assert loss.total.item() == pytest.approx(-objective.sum().item(), rel=1e-15)


def test_the_likelihood_of_imitated_tokens_grows_whatever_their_advantages_and_ratios():
    settings = PolicySettings(trust_region="band", low=0.5, high=0.5, nll=0.1)
    behaviour = doubles(-1.0, -2.0, -3.0)
    logprobs = (behaviour + doubles(2.0, 0.0, 0.0)).requires_grad_()
    thirds = torch.full((3,), 1 / 3, dtype=torch.float64)
    tokens = PolicyTokens(behaviour, doubles(1.0, 0.0, 0.0), thirds, thirds, nll_weights=doubles(0.5, 0.5, 0.0))
    loss = policy_loss(logprobs, thirds, tokens, settings)
    loss.total.backward()
    assert logprobs.grad.tolist() == pytest.approx([-0.05, -0.05, 0.0])
    assert (loss.nll.item(), loss.total.item(), loss.policy) == (pytest.approx(0.5), pytest.approx(0.05), 0.0)


@pytest.mark.parametrize("ratio", ["sequence", "product"])
def test_a_sequence_of_which_only_the_entropy_counts_has_a_ratio_of_one(ratio):
    settings = PolicySettings(ratio=ratio, sequence_mask=(0.9, 1.1), entropy=0.1)
    logprobs = doubles(-1.0, -2.0).requires_grad_()
    tokens = PolicyTokens(doubles(-3.0, -1.0), doubles(1.0, 1.0), doubles(0.0, 0.0), doubles(0.5, 0.5), sequences=torch.tensor([0, 1]))
    loss = policy_loss(logprobs, doubles(0.2, 0.4), tokens, settings)
    loss.total.backward()
    assert (loss.total.item(), loss.policy) == (pytest.approx(-0.03), 0.0)
    assert not logprobs.grad.any()


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_the_product_of_ratios_has_the_true_gradient_on_anothers_samples(baseline):
    """All answers of two tokens from three, weighted by mu: the mean over samples. A ratio by token leaves a bias."""
    draw = torch.Generator().manual_seed(5)
    logits, other = (torch.randn(2, 3, generator=draw, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    answers = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    places, rewards = torch.arange(2).expand(9, 2), torch.randn(9, generator=draw, dtype=torch.float64)
    logprobs, behaviour = (table.log_softmax(1)[places, answers] for table in (logits, other))
    (true,) = torch.autograd.grad((logprobs.sum(1).exp() * rewards).sum(), logits, retain_graph=True)

    def found(settings, mu):
        weights = (mu.sum(1, keepdim=True).exp() / 2).expand(9, 2).flatten()  # an answer's product counts once for each of two tokens
        advantages, sequences = (rewards - baseline).repeat_interleave(2), torch.arange(9).repeat_interleave(2)
        tokens = PolicyTokens(mu.flatten(), advantages, weights, weights, sequences=sequences)
        loss = policy_loss(logprobs.flatten(), torch.zeros_like(weights), tokens, settings)
        return -torch.autograd.grad(loss.total, logits, retain_graph=True)[0]

    torch.testing.assert_close(found(PolicySettings(trust_region="none", ratio="product"), behaviour), true, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(2 * found(PolicySettings(importance="none"), logprobs.detach()), true, rtol=1e-12, atol=1e-14)
    assert (2 * found(PolicySettings(trust_region="none"), behaviour) - true).abs().max() > 0.01


@pytest.mark.parametrize("importance", ["behaviour", "decoupled", "none"])
@pytest.mark.parametrize("ratio", ["token", "sequence", "product"])
def test_extreme_ratios_of_sequences_stay_finite(ratio, importance):
    for region in ("clip", "gamma", "none"):
        assert_finite(PolicySettings(region, importance=importance, ratio=ratio, off_policy_mask=0.1))


@pytest.mark.parametrize("importance", ["behaviour", "decoupled", "none"])
def test_extreme_ratios_stay_finite(region, importance):
    assert_finite(PolicySettings(region, importance=importance, sequence_mask=(0.0, 1e9)))


def assert_finite(settings):
    logprobs = torch.tensor([-1.0, -500.0, -1.0, -500.0], requires_grad=True)
    behaviour, shares = torch.tensor([-500.0, -1.0, -400.0, -2.0]), torch.full((4,), 0.25)
    tokens = PolicyTokens(behaviour, torch.tensor([1.0, -1.0, -1.0, 1.0]), shares, shares, behaviour.flip(0), torch.tensor([0, 0, 1, 2]))
    for estimator in ("k2", "k3", "unbiased"):
        loss = policy_loss(logprobs, shares, tokens, replace(settings, kl=0.1, kl_estimator=estimator))
        (gradient,) = torch.autograd.grad(loss.total, logprobs)
        assert loss.total.isfinite()
        assert gradient.isfinite().all()


def test_a_product_is_cut_once_more_and_has_no_gradient_beyond():
    six = torch.full((6,), 15.0, dtype=torch.float64)
    found, loss = slopes(six, torch.ones_like(six), PolicySettings(trust_region="none", ratio="product"))
    assert loss.policy.item() == pytest.approx(-6 * math.exp(20.0))
    assert not found.any()
    below, loss = slopes(-six, torch.ones_like(six), PolicySettings(ratio="product"))
    assert loss.policy.item() == pytest.approx(-6 * math.exp(-20.0))
    assert not below.any()


def test_tokens_without_weight_may_hold_anything_in_every_region(region):
    settings = PolicySettings(region, kl=0.1, kl_estimator="unbiased", sequence_mask=(0.8, 1.3), off_policy_mask=0.1)
    nan, inf = math.nan, math.inf
    weights, behaviour = doubles(0.5, 0.0, 0.5, 0.0), doubles(-1.1, nan, -1.9, -inf)
    spoilt = PolicyTokens(behaviour, doubles(1.0, nan, -1.0, inf), weights, weights, behaviour, torch.tensor([0, 0, 1, -7]))
    logprobs, clean = doubles(-1.0, nan, -2.0, inf).requires_grad_(), doubles(-1.0, -2.0).requires_grad_()
    loss = policy_loss(logprobs, doubles(0.1, nan, 0.2, inf), spoilt, settings)
    alone = policy_loss(clean, doubles(0.1, 0.2), spoilt.at(torch.tensor([0, 2])), settings)
    loss.total.backward()
    alone.total.backward()
    assert loss.total == alone.total
    assert logprobs.grad.tolist() == [clean.grad[0].item(), 0.0, clean.grad[1].item(), 0.0]


def test_nan_of_a_token_with_weight_is_never_hidden(region):
    one = doubles(1.0)
    for parts in ((doubles(math.nan), one, one), (one, doubles(math.nan), one), (one, one, doubles(math.nan))):
        logprobs, behaviour, advantages = parts
        tokens = PolicyTokens(behaviour, advantages, one, one, one, torch.tensor([0]))
        assert policy_loss(logprobs, one, tokens, PolicySettings(region, sequence_mask=(0.9, 1.1))).total.isnan()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trust_region": "cispo"}, r"^trust_region: is 'cispo'; pass one of clip, log_clip, cap"),
        ({"importance": "mu"}, r"^importance: is 'mu'; pass one of behaviour, decoupled, none"),
        ({"ratio": "sequences"}, r"^ratio: is 'sequences'; pass one of token, sequence, product"),
        ({"kl_estimator": "k1"}, r"^kl_estimator: is 'k1'; pass one of k2, k3, unbiased"),
        ({"low": 0.2, "high": -0.3}, r"^high: is -0\.3 and low is 0\.2; pass bounds in their order"),
        ({"dual": 1.0}, r"^dual: is 1\.0; pass a number above 1, or None"),
        ({"dual": 3.0, "trust_region": "band"}, r'^dual: bounds "clip" alone; pass None with "band"'),
        ({"ratio": "sequence", "trust_region": "soft"}, r'^ratio: is "sequence" and "soft" is of single tokens; pass "token", or'),
        ({"ratio": "product", "trust_region": "cap"}, r'^ratio: is "product" and "cap" is of single tokens'),
        ({"sequence_mask": (1.1, 2.0)}, r"^sequence_mask: is \(1\.1, 2\.0\); pass bounds around a ratio of 1"),
        ({"off_policy_mask": -0.1}, r"^off_policy_mask: is -0\.1; pass 0 or more nats, or None"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings_that_are_none_or_do_not_go_together_are_refused_by_name(wrong, words):
    with pytest.raises(ValueError, match=words):
        PolicySettings(**wrong)


def test_curves_that_are_none_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^temperatures: are \(1\.0, 0\.0\); pass two positive numbers"):
        Curves((1.0, 0.0))
    with pytest.raises(ValueError, match=r"^gamma: is \(\(2\.0, 3\.0\), \(3\.0, 0\.0\)\); pass two pairs of positive numbers"):
        Curves(gamma=((2.0, 3.0), (3.0, 0.0)))


def test_only_what_looks_at_sequences_needs_them(region):
    assert not PolicySettings(region).needs_sequences
    for settings in (
        PolicySettings(ratio="product"),
        PolicySettings(region, sequence_mask=(0.5, 2.0)),
        PolicySettings(region, off_policy_mask=0.1),
    ):
        assert settings.needs_sequences
        one = torch.ones(3)
        with pytest.raises(ValueError, match=r"^tokens\.sequences: a ratio or a mask of whole sequences needs"):
            policy_loss(one, one, PolicyTokens(one, one, one, one), settings)

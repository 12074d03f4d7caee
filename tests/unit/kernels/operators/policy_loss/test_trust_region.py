"""Loss and gradient of every variant against loops over single tokens in Python's floats, written from the papers."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as search
from hypothesis import strategies as st

from gradbus_kernels.operators import PolicySettings, PolicyTokens, policy_loss

# Each: gain, its slope by the log-ratio, its slope by the log-probability itself, and whether it is bounded below or above.


def ppo_clip(rho, a, logp, mu, s):
    """arXiv:1707.06347, equation 7, by its cases; the dual clip is arXiv:1912.09729, equation 5."""
    low, high = 1 - s.low, 1 + s.high
    outside = rho < low, rho > high or (s.dual is not None and a < 0 and rho > s.dual)
    if a >= 0:
        return (rho * a, rho * a, 0.0, *outside) if rho <= high else (high * a, 0.0, 0.0, *outside)
    if s.dual is not None and rho > s.dual:
        return s.dual * a, 0.0, 0.0, *outside
    return (rho * a, rho * a, 0.0, *outside) if rho >= low else (low * a, 0.0, 0.0, *outside)


def cispo(rho, a, logp, mu, s):
    """arXiv:2506.13585, equation 4: the bounded weight is a constant."""
    weight = min(max(rho, 1 - s.low), 1 + s.high)
    return weight * a * logp, 0.0, weight * a, rho < 1 - s.low, rho > 1 + s.high


def double_sided(rho, a, logp, mu, s):
    """arXiv:2607.07508: f(rho) = rho inside, else 0."""
    if rho < 1 - s.low or rho > 1 + s.high:
        return 0.0, 0.0, 0.0, rho < 1 - s.low, rho > 1 + s.high
    return rho * a, rho * a, 0.0, False, False


def dppo(rho, a, logp, mu, s):
    """arXiv:2602.04879, the mask of total variation: only a step further away is refused."""
    away = math.exp(logp) - math.exp(mu)
    if a > 0 and away > s.high:
        return 0.0, 0.0, 0.0, False, True
    if a < 0 and -away > s.low:
        return 0.0, 0.0, 0.0, True, False
    return rho * a, rho * a, 0.0, False, False


def sapo(rho, a, logp, mu, s):
    """arXiv:2511.20347, equations 5 and 6."""
    tau = s.curves.temperatures[0] if a > 0 else s.curves.temperatures[1]
    gate = 1 / (1 + math.exp(-tau * (rho - 1)))
    return 4 / tau * gate * a, 4 * gate * (1 - gate) * rho * a, 0.0, False, False


def vespo(rho, a, logp, mu, s):
    """arXiv:2602.10693: the weight e^lambda W^k e^(-lambda W) of a ratio W is a constant."""
    k, rate = s.curves.gamma[0] if a > 0 else s.curves.gamma[1]
    weight = math.exp(rate) * rho**k * math.exp(-rate * rho)
    return weight * a * logp, 0.0, weight * a, False, False


def importance_sampling(rho, a, logp, mu, s):
    return rho * a, rho * a, 0.0, False, False


def gmpo(ratios, s):
    """arXiv:2507.20673, equation 4: log-ratios of tokens with their advantages, bounded on one side, and which of them still move."""
    bounded = {j: min(ratio, s.high) if a > 0 else max(ratio, -s.low) for j, (ratio, a) in ratios.items()}
    return bounded, {j: float(bounded[j] == ratio) for j, (ratio, _) in ratios.items()}


PAPERS = {"clip": ppo_clip, "cap": cispo, "band": double_sided, "mass": dppo, "soft": sapo, "gamma": vespo, "none": importance_sampling}


def divergence(logp, mu, ref, estimator):
    """The estimate and its slope."""
    r = math.exp(ref - logp)
    if estimator == "k2":
        return (logp - ref) ** 2 / 2, logp - ref
    value, slope = r - 1 - math.log(r), 1 - r
    rho = math.exp(logp - mu)
    return (rho * value, rho * (value + slope)) if estimator == "unbiased" else (value, slope)


class Loop:
    """The loss of a batch, its gradient by each log-probability, and the shares of bounded tokens."""

    def __init__(self, logprobs, entropies, tokens, settings):
        self.settings, self.total, self.low, self.high = settings, 0.0, 0.0, 0.0
        names = ("behaviour_logprobs", "advantages", "weights", "entropy_weights", "reference_logprobs", "sequences", "nll_weights")
        parts = [logprobs.tolist(), entropies.tolist(), *(getattr(tokens, name).tolist() for name in names)]
        self.proximal = parts[0] if tokens.proximal_logprobs is None else tokens.proximal_logprobs.tolist()
        self.rows = list(zip(*parts, strict=True))
        self.gradient = [0.0] * len(self.rows)
        for sequence in {row[7] for row in self.rows}:
            members = [i for i, row in enumerate(self.rows) if row[7] == sequence and row[4] != 0.0]
            for i in members:
                self.add(i, members)

    def add(self, i, members):
        logp, entropy, mu, a, weight, share, ref, _, imitated = self.rows[i]
        s = self.settings
        gain, slope, low, high = self.gained(i, members)
        mean = math.fsum(self.rows[j][0] - self.rows[j][2] for j in members) / len(members)
        if s.sequence_mask is not None and not s.sequence_mask[0] <= math.exp(mean) <= s.sequence_mask[1]:
            gain, slope = 0.0, 0.0
        if s.off_policy_mask is not None and a < 0 and -mean > s.off_policy_mask:
            gain, slope = 0.0, 0.0
        kl, kl_slope = divergence(logp, mu, ref, s.kl_estimator)
        self.total += weight * (s.kl * kl + s.drift * (logp - mu) ** 2 - gain) - share * s.entropy * entropy
        self.total -= s.nll * imitated * logp
        self.gradient[i] -= s.nll * imitated
        self.gradient[i] += weight * (s.kl * kl_slope + 2 * s.drift * (logp - mu))
        self.gradient[i] -= weight * slope
        self.low, self.high = self.low + share * low, self.high + share * high

    def gained(self, i, members):
        """Gain of token i, and its slope by its own log-probability: GSPO-token (arXiv:2507.18071, equation 14) of sequences.

        Its own stands for all tokens of the sequence, which would have the same advantage and weight.
        """
        logp, _, mu, a, *_ = self.rows[i]
        s, outer = self.settings, 1.0
        if s.importance == "none":
            return a * logp, a, False, False
        ratios = {j: self.rows[j][0] - self.rows[j][2] for j in members}
        if s.importance == "decoupled":
            outer, mu = min(math.exp(self.proximal[i] - mu), 2.0), self.proximal[i]
            ratios = {j: self.rows[j][0] - self.proximal[j] for j in members}
        shares = {"token": {i: 1.0}, "sequence": dict.fromkeys(members, 1 / len(members)), "product": dict.fromkeys(members, 1.0)}[s.ratio]
        if s.trust_region == "log_clip":
            ratios, kept = gmpo({j: (ratio, self.rows[j][3]) for j, ratio in ratios.items()}, s)
            moved = logp - mu
            rho = math.exp(math.fsum(share * ratios[j] for j, share in shares.items()))
            return outer * rho * a, outer * rho * a * len(shares) * shares[i] * kept[i], a <= 0 and moved < -s.low, a > 0 and moved > s.high
        rho = math.exp(math.fsum(share * ratios[j] for j, share in shares.items()))
        gain, by_ratio, by_logp, low, high = PAPERS[s.trust_region](rho, a, logp, mu, s)
        return outer * gain, outer * (by_ratio * len(shares) * shares[i] + by_logp), low, high


def batch(count, seed, anchored=False):
    """Log-probabilities, entropies and tokens of sequences of four, of which a fifth is not trained; with a policy before the step."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda scale: torch.randn(count, generator=generator, dtype=torch.float64) * scale  # noqa: E731
    logprobs = (draw(1.0).abs().neg() - 0.1).requires_grad_()
    trained = torch.rand(count, generator=generator) < 0.8
    weights = torch.where(trained, torch.rand(count, generator=generator, dtype=torch.float64), 0.0)
    shares = torch.where(trained, 1.0 / max(1, int(trained.sum())), 0.0).double()
    base = logprobs.detach()
    tokens = PolicyTokens(base + draw(0.4), draw(1.0), weights, shares, base + draw(0.3), torch.arange(count) // 4)
    entropies = draw(1.0).abs().requires_grad_()
    proximal = base + draw(0.3) if anchored else None
    return logprobs, entropies, replace(tokens, proximal_logprobs=proximal, nll_weights=torch.where(trained, draw(0.1).abs(), 0.0))


def assert_is_the_loop(count, seed, settings, anchored=False):
    logprobs, entropies, tokens = batch(count, seed, anchored)
    loss = policy_loss(logprobs, entropies, tokens, settings)
    loss.total.backward()
    expected = Loop(logprobs, entropies, tokens, settings)
    assert loss.total.item() == pytest.approx(expected.total, rel=1e-12, abs=1e-12)
    assert logprobs.grad.tolist() == pytest.approx(expected.gradient, rel=1e-10, abs=1e-12)
    assert (loss.ratio.clipped_low.item(), loss.ratio.clipped_high.item()) == pytest.approx((expected.low, expected.high))
    assert torch.equal(entropies.grad, -settings.entropy * tokens.entropy_weights) if settings.entropy else entropies.grad is None
    return expected


@search(deadline=None, max_examples=200)
@given(st.integers(1, 30), st.integers(0, 1000), st.data())
def test_loss_and_gradient_equal_a_loop_over_tokens(any_settings, count, seed, data):
    assert_is_the_loop(count, seed, data.draw(any_settings), data.draw(st.booleans()))


@pytest.mark.parametrize(
    "settings",
    [
        PolicySettings(),
        PolicySettings(dual=1.3),
        PolicySettings(dual=1.2, high=0.8),
        PolicySettings(trust_region="cap"),
        PolicySettings(trust_region="band"),
        PolicySettings(trust_region="mass", low=0.05, high=0.05),
        PolicySettings(ratio="sequence", low=0.1, high=0.1),
        PolicySettings(ratio="product", low=0.5, high=1.0),
    ],
    ids=lambda settings: f"{settings.trust_region}-{settings.ratio}-{settings.dual}",
)
def test_every_bounded_variant_bounds_tokens_on_both_sides(settings):
    found = assert_is_the_loop(60, 5, settings)
    assert min(found.low, found.high) > 0.0
    assert found.low + found.high < 0.9


def test_a_policy_before_the_step_bounds_tokens_on_both_sides_and_none_while_it_is_the_policy_itself():
    settings = PolicySettings(importance="decoupled")
    anchored, idle = (assert_is_the_loop(60, 5, settings, given) for given in (True, False))
    assert min(anchored.low, anchored.high) > 0.0
    assert (idle.low, idle.high) == (0.0, 0.0)
    logprobs, entropies, tokens = batch(60, 5)
    itself = replace(tokens, proximal_logprobs=logprobs.detach())
    one, other = (policy_loss(logprobs, entropies, given, settings) for given in (tokens, itself))
    assert torch.equal(one.total, other.total)


def test_what_fades_and_none_and_a_loss_without_ratio_bound_nothing():
    for settings in (*map(PolicySettings, ("soft", "gamma", "none")), PolicySettings(importance="none")):
        found = assert_is_the_loop(60, 5, settings)
        assert (found.low, found.high) == (0.0, 0.0)


def test_masks_take_sequences_and_leave_kl_entropy_and_weights():
    logprobs, entropies, tokens = batch(24, 3)
    terms = PolicySettings(kl=0.1, entropy=0.1)
    plain = policy_loss(logprobs, entropies, tokens, terms)
    masked = policy_loss(logprobs, entropies, tokens, PolicySettings(kl=0.1, entropy=0.1, sequence_mask=(1.0, 1.0)))
    assert (masked.kl, masked.entropy, masked.policy.item()) == (plain.kl, plain.entropy, 0.0)
    for settings in (PolicySettings(sequence_mask=(0.9, 1.1)), PolicySettings(off_policy_mask=0.0)):
        some = policy_loss(logprobs, entropies, tokens, settings)
        assert some.policy not in {plain.policy, 0.0}

"""Score centring: a float64 loop from the paper, the score's mean by enumeration, finite differences, and what changes nothing."""

import math
from dataclasses import replace

import pytest
import torch

from gradbus_kernels.operators import (
    PolicySettings,
    PolicyTokens,
    Softcapped,
    TeacherRows,
    linear_grpo_loss,
    linear_score_centering,
    linear_score_centering_reference,
    linear_teacher_rows,
)
from gradbus_kernels.operators.distillation_loss import tiles

VOCABULARY, WIDTH, POSITIONS = 11, 5, 7
PLAIN = PolicySettings(trust_region="none", importance="none")
CAP = PolicySettings(trust_region="cap", low=1.0, high=0.3)
BAND = PolicySettings(trust_region="band", low=0.4, high=0.8)
RATIO = PolicySettings(trust_region="none")
SETTINGS = pytest.mark.parametrize("settings", [PLAIN, CAP, BAND], ids=["none", "cap", "band"])


def weight_of(ratio, settings):
    """w by the names of the paper: none, TIS and IcePop."""
    if settings is PLAIN:
        return 1.0
    low, high = 1.0 - settings.low, 1.0 + settings.high
    return min(max(ratio, low), high) if settings is CAP else ratio if low <= ratio <= high else 0.0


def made(count=4, temperature=1.0, dtype=torch.float64, seed=0):
    """Hidden states and head of the policy, the rows of another one that sampled, the sampled ids, and tokens with advantages."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    hidden, weight = normal(POSITIONS, WIDTH).requires_grad_(), normal(VOCABULARY, WIDTH).requires_grad_()
    of_sampler = hidden.detach() + 0.4 * normal(POSITIONS, WIDTH)
    ids = torch.randint(VOCABULARY, (POSITIONS,), generator=generator)
    found = linear_teacher_rows(of_sampler, weight.detach(), ids, count, temperature=temperature)
    weights = torch.rand(POSITIONS, generator=generator, dtype=torch.float64).to(dtype)
    shares = torch.full_like(weights, 1.0 / POSITIONS)
    return hidden, weight, ids, found.rows, PolicyTokens(found.logprobs.to(dtype), normal(POSITIONS), weights, shares)


def distributions(hidden, weight, temperature):
    scale, cap = Softcapped.of(temperature)
    raw = hidden.detach() @ weight.detach().T
    return ((raw if cap is None else cap * torch.tanh(raw / cap)) / scale).softmax(-1)


def mean_score(p, q_row, ids, settings):
    """The factors c of one position, by token: the mean of w · grad log p is the sum of c_v · grad log p_v. `q_row` ends with the rest."""
    *q_row, q_rest = q_row
    kappa = q_rest / sum(share for v, share in enumerate(p) if v not in ids)
    alpha = kappa * weight_of(1.0 / kappa, settings)
    return {v: q * weight_of(p[v] / q, settings) - alpha * p[v] for v, q in zip(ids, q_row, strict=True)}


@SETTINGS
@pytest.mark.parametrize("count", [1, 4, VOCABULARY - 1])
@pytest.mark.parametrize("temperature", [1.0, 0.7, Softcapped(0.7, 2.0)])
def test_it_is_the_formula_of_the_paper(settings, count, temperature):
    hidden, weight, _, rows, tokens = made(count, temperature)
    found = linear_score_centering(hidden, weight, rows, tokens, settings, temperature=temperature)
    table, expected, distance = distributions(hidden, weight, temperature), 0.0, 0.0
    for n in range(POSITIONS):
        p, q = table[n].tolist(), rows.logprobs[n].exp().tolist()
        for v, factor in mean_score(p, q, rows.ids[n].tolist(), settings).items():
            expected += (tokens.weights[n] * tokens.advantages[n]).item() * factor * math.log(p[v])
        row = rows.ids[n].tolist()
        outcomes = [*(p[v] for v in row), sum(share for v, share in enumerate(p) if v not in row)]
        distance += sum(abs(one - other) for one, other in zip(q, outcomes, strict=True)) / 2 / POSITIONS
    assert found.total.item() == pytest.approx(expected, rel=1e-12)
    assert found.distance.item() == pytest.approx(distance, rel=1e-12)
    plain = linear_score_centering_reference(hidden, weight, rows, tokens, settings, temperature=temperature)
    assert plain.total.item() == pytest.approx(expected, rel=1e-12)
    assert plain.distance.item() == pytest.approx(distance, rel=1e-12)
    slopes = [torch.autograd.grad(one.total, (hidden, weight)) for one in (found, plain)]
    for ours, other in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-10, atol=1e-13)


@SETTINGS
def test_the_mean_of_a_centred_score_under_the_sampler_is_zero(settings):
    """By enumeration of the tokens that mu may sample, with one advantage for all: without it the mean moves the policy."""
    hidden, weight, _, rows, tokens = made(VOCABULARY - 1)
    q = torch.zeros(POSITIONS, VOCABULARY, dtype=torch.float64).scatter(1, rows.ids, rows.logprobs[:, :-1].exp())
    q = q + (q == 0.0) * rows.logprobs[:, -1:].exp()
    means = {"plain": 0.0, "centred": 0.0}
    for v in range(VOCABULARY):
        ids = torch.full((POSITIONS,), v)
        share = PolicyTokens(q[:, v].log(), torch.ones_like(tokens.advantages), q[:, v], tokens.entropy_weights)
        loss = linear_grpo_loss(hidden, weight, ids, share, settings)
        means["plain"] += torch.autograd.grad(loss.total, hidden)[0]
        # The mean of the centring term is the term itself: it does not depend on the sampled token.
        centring = linear_score_centering(hidden, weight, rows, share, settings)
        means["centred"] += torch.autograd.grad(centring.total, hidden)[0]
    means["centred"] += means["plain"]
    assert means["plain"].abs().max() > 1e-2
    assert means["centred"].abs().max() < 1e-12


def test_of_the_whole_vocabulary_without_a_ratio_the_logits_get_the_token_minus_the_sampler():
    hidden, weight, ids, rows, tokens = made(VOCABULARY - 1)
    head = torch.eye(VOCABULARY, dtype=torch.float64)
    logits = (hidden @ weight.T).detach().requires_grad_()
    total = linear_grpo_loss(logits, head, ids, tokens, PLAIN).total + linear_score_centering(logits, head, rows, tokens, PLAIN).total
    (slopes,) = torch.autograd.grad(total, logits)
    q = torch.zeros(POSITIONS, VOCABULARY, dtype=torch.float64).scatter(1, rows.ids, rows.logprobs[:, :-1].exp())
    q = q + (q == 0.0) * rows.logprobs[:, -1:].exp()
    one_hot = torch.nn.functional.one_hot(ids, VOCABULARY)
    torch.testing.assert_close(slopes, -(tokens.weights * tokens.advantages)[:, None] * (one_hot - q), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("settings", [RATIO, CAP, BAND, PLAIN], ids=["ratio", "cap", "band", "none"])
def test_a_policy_that_sampled_itself_has_nothing_to_centre(settings):
    hidden, weight, ids, _, tokens = made()
    own = linear_teacher_rows(hidden, weight, ids, 4).rows
    found = linear_score_centering(hidden, weight, own, tokens, settings)
    assert found.distance.item() == pytest.approx(0.0, abs=1e-14)
    assert torch.autograd.grad(found.total, hidden)[0].abs().max() < 1e-14


def test_with_the_ratio_itself_as_the_weight_nothing_is_taken():
    hidden, weight, _, rows, tokens = made()
    found = linear_score_centering(hidden, weight, rows, tokens, RATIO)
    assert found.distance > 0.01
    assert torch.autograd.grad(found.total, hidden)[0].abs().max() < 1e-14


@SETTINGS
def test_finite_differences_with_fixed_factors_give_the_gradient(settings):
    hidden, weight, _, rows, tokens = made()
    found = linear_score_centering(hidden, weight, rows, tokens, settings)
    (slopes,) = torch.autograd.grad(found.total, hidden)
    table = distributions(hidden, weight, 1.0)
    fixed = [mean_score(table[n].tolist(), rows.logprobs[n].exp().tolist(), rows.ids[n].tolist(), settings) for n in range(POSITIONS)]

    def value(at):
        moved = distributions(at, weight, 1.0).log()
        terms = ((n, v, factor) for n, factors in enumerate(fixed) for v, factor in factors.items())
        return sum((tokens.weights[n] * tokens.advantages[n] * factor * moved[n, v]).item() for n, v, factor in terms)

    for n in range(POSITIONS):
        step = torch.zeros_like(hidden)
        step[n, n % WIDTH] = 1e-6
        around = value(hidden.detach() + step) - value(hidden.detach() - step)
        assert around / 2e-6 == pytest.approx(slopes[n, n % WIDTH].item(), rel=1e-6, abs=1e-9)


@SETTINGS
@pytest.mark.parametrize("bytes_of_logits", [1, 8 * VOCABULARY * 3])
def test_tiles_change_nothing(monkeypatch, settings, bytes_of_logits):
    hidden, weight, _, rows, tokens = made()
    whole = linear_score_centering(hidden, weight, rows, tokens, settings)
    monkeypatch.setattr(tiles, "WORKSPACE", bytes_of_logits)
    parts = linear_score_centering(hidden, weight, rows, tokens, settings)
    torch.testing.assert_close(parts.total, whole.total, rtol=1e-13, atol=1e-15)
    for one, other in zip(*(torch.autograd.grad(found.total, (hidden, weight)) for found in (whole, parts)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_tokens_that_are_not_used_may_hold_anything():
    hidden, weight, _, rows, tokens = made()
    kept = replace(tokens, weights=tokens.weights.clone(), entropy_weights=tokens.entropy_weights.clone())
    kept.weights[2] = kept.entropy_weights[2] = 0.0
    expected = linear_score_centering(hidden, weight, rows, kept, BAND)
    (slopes,) = torch.autograd.grad(expected.total, weight)
    spoiled, wild = hidden.detach().clone(), TeacherRows(rows.ids.clone(), rows.logprobs.clone())
    spoiled[2], wild.ids[2], wild.logprobs[2], kept.advantages[2] = torch.nan, -1, torch.nan, torch.nan
    found = linear_score_centering(spoiled.requires_grad_(), weight, wild, kept, BAND)
    assert (found.total, found.distance) == (expected.total, expected.distance)
    assert torch.equal(torch.autograd.grad(found.total, weight)[0], slopes)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 6e-2)])
def test_narrow_inputs_are_near_wide_ones(dtype, tolerance):
    hidden, weight, _, rows, tokens = made(dtype=dtype)
    found = linear_score_centering(hidden, weight, rows, tokens, CAP)
    wide = [part.detach().double().requires_grad_() for part in (hidden, weight)]
    of_wide = PolicyTokens(*(getattr(tokens, name).double() for name in ("behaviour_logprobs", "advantages", "weights", "entropy_weights")))
    expected = linear_score_centering(*wide, TeacherRows(rows.ids, rows.logprobs.double()), of_wide, CAP)
    assert found.total.dtype == torch.float32
    slopes = zip(torch.autograd.grad(found.total, (hidden, weight)), torch.autograd.grad(expected.total, wide), strict=True)
    for part, other in slopes:
        assert part.dtype == dtype
        torch.testing.assert_close(part.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (PolicySettings(), 'have the trust region "clip"'),
        (PolicySettings(trust_region="none", ratio="sequence"), "weigh whole sequences"),
        (PolicySettings(trust_region="band", sequence_mask=(0.5, 2.0)), "weigh whole sequences"),
    ],
)
def test_settings_whose_mean_it_is_not_are_refused(settings, words):
    hidden, weight, _, rows, tokens = made()
    with pytest.raises(ValueError, match=words):
        linear_score_centering(hidden, weight, rows, replace(tokens, sequences=torch.zeros(POSITIONS, dtype=torch.int64)), settings)
    every = torch.arange(VOCABULARY).expand(POSITIONS, -1)
    with pytest.raises(ValueError, match="fewer than the vocabulary"):
        linear_score_centering(hidden, weight, TeacherRows(every, rows.logprobs), tokens, BAND)

"""The losses and their gradients against loops over floats, written from the papers' equations, and in numbers known by hand."""

import math
from dataclasses import replace

import pytest
import torch

from gradbus_kernels.operators import PairTokens, PreferenceSettings, preference_loss

SETTINGS = [
    PreferenceSettings("dpo", 0.1),
    PreferenceSettings("dpo", 0.7, label_smoothing=0.2),
    PreferenceSettings("ipo", 0.3),
    PreferenceSettings("simpo", 2.0, 0.8),
    PreferenceSettings("orpo", 0.4),
]
NAMES = ["dpo", "cdpo", "ipo", "simpo", "orpo"]
LENGTHS = [(5, 3), (1, 7), (4, 4), (2, 9), (6, 1)]


def sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


def of_pair(settings, chosen, rejected, reference_chosen, reference_rejected):
    """Loss and slopes in each log-probability of a pair, all as lists of the trained tokens' numbers."""
    beta, width, other = settings.beta, len(chosen), len(rejected)
    if settings.loss == "dpo":  # Rafailov et al., equation 7 and the gradient below it; with smoothing, the mean over both labels
        reward_w = beta * (math.fsum(chosen) - math.fsum(reference_chosen))
        reward_l = beta * (math.fsum(rejected) - math.fsum(reference_rejected))
        swapped = settings.label_smoothing
        loss = -(1 - swapped) * math.log(sigmoid(reward_w - reward_l)) - swapped * math.log(sigmoid(reward_l - reward_w))
        slope = -beta * ((1 - swapped) * sigmoid(reward_l - reward_w) - swapped * sigmoid(reward_w - reward_l))
        return loss, [slope] * width, [-slope] * other
    mean_w, mean_l = math.fsum(chosen) / width, math.fsum(rejected) / other
    if settings.loss == "ipo":  # Azar et al., equation 17, with tau = beta and h of means
        h = (mean_w - math.fsum(reference_chosen) / width) - (mean_l - math.fsum(reference_rejected) / other)
        slope = 2 * (h - 1 / (2 * beta))
        return (h - 1 / (2 * beta)) ** 2, [slope / width] * width, [-slope / other] * other
    if settings.loss == "simpo":  # Meng et al., the objective
        gap = beta / width * math.fsum(chosen) - beta / other * math.fsum(rejected) - settings.margin
        return -math.log(sigmoid(gap)), [-beta * sigmoid(-gap) / width] * width, [beta * sigmoid(-gap) / other] * other
    p_w, p_l = math.exp(mean_w), math.exp(mean_l)  # Hong et al., equations 6 and 7 and the gradient below them
    odds_w, odds_l = p_w / (1 - p_w), p_l / (1 - p_l)
    delta = 1 / (1 + odds_w / odds_l)
    slope_w = -1 / width - beta * delta / (1 - p_w) / width
    return -mean_w - beta * math.log(sigmoid(math.log(odds_w / odds_l))), [slope_w] * width, [beta * delta / (1 - p_l) / other] * other


def by_loops(logprobs, tokens, settings):
    """Total, gradient, and the statistics in their order."""
    rows = list(zip(tokens.sequences.tolist(), tokens.trained.tolist(), logprobs.tolist(), tokens.reference_logprobs.tolist(), strict=True))
    places = [[n for n, row in enumerate(rows) if row[:2] == (sequence, True)] for sequence in range(rows[-1][0] + 1)]
    total, gradient, sums, margin, right = 0.0, [0.0] * len(rows), [0.0, 0.0], 0.0, 0
    for chosen, rejected in zip(places[::2], places[1::2], strict=True):
        policy, reference = ([[rows[n][column] for n in part] for part in (chosen, rejected)] for column in (2, 3))
        loss, *slopes = of_pair(settings, *policy, *reference)
        total += loss / tokens.pairs
        for n, slope in zip(chosen + rejected, slopes[0] + slopes[1], strict=True):
            gradient[n] = slope / tokens.pairs
        scores = [math.fsum(part) for part in policy]
        if settings.loss in {"dpo", "ipo"}:
            scores = [score - math.fsum(part) for score, part in zip(scores, reference, strict=True)]
        if settings.loss != "dpo":
            scores = [score / len(part) for score, part in zip(scores, policy, strict=True)]
        sums = [known + math.fsum(part) / tokens.pairs for known, part in zip(sums, policy, strict=True)]
        margin += settings.beta * (scores[0] - scores[1]) / tokens.pairs
        right += scores[0] > scores[1]
    return total, gradient, [*sums, margin, right / tokens.pairs]


def loss_and_gradient(logprobs, tokens, settings):
    logprobs = logprobs.clone().requires_grad_()
    loss = preference_loss(logprobs, tokens, settings)
    loss.total.backward()
    return loss, logprobs.grad


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_the_papers_equations_in_loops(make_pairs, settings, seed):
    logprobs, tokens = make_pairs(LENGTHS, seed)
    tokens = replace(tokens, pairs=8)  # this micro-batch is a part of its update
    loss, gradient = loss_and_gradient(logprobs, tokens, settings)
    total, slopes, statistics = by_loops(logprobs, tokens, settings)
    assert loss.total.item() == pytest.approx(total, rel=1e-12)
    assert gradient.tolist() == pytest.approx(slopes, rel=1e-10, abs=1e-15)
    found = loss[1:]
    assert [part.item() for part in found] == pytest.approx(statistics, rel=1e-12)
    assert not any(part.requires_grad for part in found)


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMES)
def test_the_gradient_is_that_of_finite_differences(make_pairs, settings):
    logprobs, tokens = make_pairs(LENGTHS, 7)
    assert torch.autograd.gradcheck(lambda moved: preference_loss(moved, tokens, settings).total, logprobs.requires_grad_(), atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        (PreferenceSettings("dpo", 0.3), math.log(2.0)),
        (PreferenceSettings("dpo", 0.3, label_smoothing=0.3), math.log(2.0)),
        (PreferenceSettings("ipo", 0.2), 1.0 / (4.0 * 0.2**2)),
    ],
    ids=["dpo", "cdpo", "ipo"],
)
def test_a_policy_that_is_its_reference_has_a_loss_known_before(make_pairs, settings, start):
    logprobs, tokens = make_pairs(LENGTHS)
    loss, _ = loss_and_gradient(logprobs, replace(tokens, reference_logprobs=logprobs), settings)
    assert (loss.total.item(), loss.margin.item(), loss.accuracy.item()) == (pytest.approx(start, rel=1e-15), 0.0, 0.5)


def test_at_equal_means_simpo_is_its_margin_and_orpo_a_coin():
    tokens = PairTokens(torch.tensor([0, 0, 0, 1]), torch.ones(4, dtype=torch.bool), 1)
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -2.0], dtype=torch.float64)
    simpo, _ = loss_and_gradient(logprobs, tokens, PreferenceSettings("simpo", 2.0, margin=0.8))
    assert simpo.total.item() == pytest.approx(-math.log(sigmoid(-0.8)), rel=1e-15)
    orpo, _ = loss_and_gradient(logprobs, tokens, PreferenceSettings("orpo", 0.4))
    assert orpo.total.item() == pytest.approx(2.0 + 0.4 * math.log(2.0), rel=1e-15)
    for loss in (simpo, orpo):
        assert [part.item() for part in loss[1:]] == [-6.0, -2.0, 0.0, 0.5]


def test_long_responses_keep_the_sign_that_float32_sums_lose():
    """64 pairs of 2,048 tokens a response, log-ratios of about 1e-5 by token: sums of -5,000 in float32 have no digits for that."""
    pairs, length = 64, 2048
    generator = torch.Generator().manual_seed(3)
    reference = -3.0 * torch.randn(2 * pairs * length, generator=generator).abs() - 0.1
    logprobs = reference + 1e-5 * torch.randn(2 * pairs * length, generator=generator)
    exact = [math.fsum(part) for part in (logprobs.double() - reference.double()).view(-1, length).tolist()]
    truth = torch.tensor(exact, dtype=torch.float64).view(pairs, 2)
    truth = truth[:, 0] - truth[:, 1]
    ratios = logprobs.view(-1, length).sum(1) - reference.view(-1, length).sum(1)
    assert ((ratios[::2] - ratios[1::2]).sign() * truth.sign() < 0.0).any()

    tokens = PairTokens(torch.arange(2 * pairs).repeat_interleave(length), torch.ones_like(logprobs, dtype=torch.bool), pairs, reference)
    loss, gradient = loss_and_gradient(logprobs, tokens, PreferenceSettings("dpo", 0.5))
    assert loss.accuracy.item() == (truth > 0.0).double().mean().item()
    assert loss.margin.item() == pytest.approx(0.5 * truth.mean().item(), rel=1e-9)
    slopes = (-0.5 / pairs * torch.sigmoid(-0.5 * truth))[:, None, None] * torch.tensor([1.0, -1.0])[:, None]
    torch.testing.assert_close(gradient.view(pairs, 2, length), slopes.float().expand(-1, -1, length), rtol=1e-6, atol=0.0)


def test_small_gains_count_beside_a_large_one():
    """Both responses gain 999.5 nats at first; then the chosen one 2^-17 at each of 2,047 tokens, the other 2^-7 once, which is less."""
    length, first = 2048, 999.5
    ratios = torch.zeros(2, length)
    ratios[:, 0] = first
    ratios[0, 1:], ratios[1, 1] = 2.0**-17, 2.0**-7
    reference = torch.full_like(ratios, -1.0)
    reference[:, 0] = -1000.0
    sequences = torch.arange(2).repeat_interleave(length)
    in_float32 = torch.zeros(2).index_add(0, sequences, ratios.flatten())
    assert in_float32[0] < in_float32[1]
    tokens = PairTokens(sequences, torch.ones_like(sequences, dtype=torch.bool), 1, reference.flatten())
    loss, _ = loss_and_gradient((reference + ratios).flatten(), tokens, PreferenceSettings("dpo", 0.5))
    assert (loss.margin.item(), loss.accuracy.item()) == (0.5 * (2047 * 2.0**-17 - 2.0**-7), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("least", [-1e-30, -1e-8, -700.0, -1e4, -1e8, 0.0])
@pytest.mark.parametrize("most", [-1e-30, -1e-8, -700.0, -1e4, -1e8, 0.0])
def test_extreme_log_probabilities_stay_finite(loss_name, dtype, most, least):
    tokens = PairTokens(torch.tensor([0, 1]), torch.ones(2, dtype=torch.bool), 1, torch.tensor([least, most], dtype=dtype))
    loss, gradient = loss_and_gradient(torch.tensor([most, least], dtype=dtype), tokens, PreferenceSettings(loss_name))
    assert all(part.isfinite() for part in loss)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("chosen", "rejected"), [(-1e-6, -9.0), (-9.0, -1e-6), (-40.0, -1e-3), (-40.0, -41.0)])
def test_orpos_odds_keep_their_digits_near_certainty_and_far_from_it(chosen, rejected):
    tokens = PairTokens(torch.tensor([0, 1]), torch.ones(2, dtype=torch.bool), 1)
    logprobs = torch.tensor([chosen, rejected], dtype=torch.float64)
    loss, gradient = loss_and_gradient(logprobs, tokens, PreferenceSettings("orpo", 0.5))
    # log(p / (1 - p)) by log1p and expm1, and 1 - sigmoid as the sigmoid of the negative.
    odds = [mean - math.log1p(-math.exp(mean)) if mean < -1.0 else mean - math.log(-math.expm1(mean)) for mean in (chosen, rejected)]
    apart = odds[0] - odds[1]
    penalty = math.log1p(math.exp(-apart)) if apart > 0.0 else math.log1p(math.exp(apart)) - apart
    slopes = [0.5 * sigmoid(-apart) / math.expm1(mean) for mean in (chosen, rejected)]
    assert loss.total.item() == pytest.approx(-chosen + 0.5 * penalty, rel=1e-13)
    assert gradient.tolist() == pytest.approx([slopes[0] - 1.0, -slopes[1]], rel=1e-9)


def test_a_micro_batch_without_pairs_has_a_loss_of_zero(loss_name):
    nothing = torch.zeros(0)
    tokens = PairTokens(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool), 3, nothing)
    loss, gradient = loss_and_gradient(nothing, tokens, PreferenceSettings(loss_name))
    assert [part.item() for part in loss] == [0.0] * 5
    assert gradient.shape == (0,)

"""A step's statistics: means over its micro-batches, read back from a device once a step."""

import math
from dataclasses import replace

import pytest
import torch

from gradbus_kernels.operators import PolicySettings, PolicyTokens, policy_loss
from gradbus_trainer.learners.gradient_step import GradientStep, StepStats


def tokens(*shares, device="cpu"):
    share = torch.tensor(shares, device=device)
    return PolicyTokens(torch.full_like(share, -1.0), torch.ones_like(share), share, share)


def loss(logprobs, given):
    logprobs = torch.as_tensor(logprobs, device=given.weights.device)
    return policy_loss(logprobs, torch.full_like(logprobs, 0.5), given, PolicySettings())


def test_means_are_over_the_trainable_tokens_of_all_micro_batches():
    stats = StepStats()
    for logprobs, given in (([-1.0, -0.5], tokens(0.25, 0.25)), ([-2.0, -7.0, -1.0], tokens(0.25, 0.0, 0.25))):
        stats.add(loss(logprobs, given), given)
    ratio = stats.ratio_metrics()
    differences = [0.0, 0.5, 1.0, 0.0]
    assert ratio.logprob_diff == pytest.approx(sum(differences) / 4)
    assert ratio.mean == pytest.approx((1 + 2.718281828**0.5 + 2.718281828**-1 + 1) / 4)
    assert ratio.max == pytest.approx(2.718281828**0.5)
    assert stats.loss_metrics().entropy == pytest.approx(0.5)


def test_the_largest_ratio_is_that_of_a_trained_token():
    stats, given = StepStats(), tokens(0.0, 0.5, 0.5)
    stats.add(loss([-1.0, -2.0, -3.0], given), given)
    assert stats.ratio_metrics().max == pytest.approx(2.718281828**-1)  # not the 1 of the token that is not used


def test_the_largest_kl_is_that_of_a_trained_token():
    stats = StepStats()
    for logprobs in ([-1.0, -2.0, -9.0], [-2.5, -2.0, -9.0]):
        given = replace(tokens(0.25, 0.25, 0.0), reference_logprobs=torch.tensor([-2.0, -2.5, torch.nan]))
        stats.add(loss(logprobs, given), given)
    assert stats.loss_metrics().kl_max == pytest.approx(math.exp(-1.0)), "r - 1 - log r of the first token, with log r = -1"


@pytest.mark.parametrize("parts", [[], [tokens(0.0, 0.0)]])
def test_a_step_without_a_trained_token_has_zeros(parts):
    stats = StepStats()
    for given in parts:
        stats.add(loss([-1.0, -2.0], given), given)
    assert stats.sums.tolist() == [0.0] * len(StepStats.NAMES)
    assert stats.largest.tolist() == [0.0, 0.0]


def test_sums_can_be_reduced_in_place():
    stats, given = StepStats(), tokens(0.5, 0.5)
    stats.add(loss([-1.0, -1.0], given), given)
    stats.sums.mul_(2.0)
    stats.largest.fill_(9.0)
    assert (stats.ratio_metrics().mean, stats.ratio_metrics().max) == (2.0, 9.0)


def test_a_micro_batch_reads_nothing_back_from_its_device():
    """On torch's `meta` device nothing can be read back, so a read raises."""
    given, step = tokens(0.5, 0.5, device="meta"), GradientStep()
    logprobs = torch.empty(2, device="meta", requires_grad=True)
    step.accumulate(given, lambda: loss(logprobs, given), torch.Tensor.backward)
    assert logprobs.grad is not None
    with pytest.raises(NotImplementedError):
        step.stats.sums  # noqa: B018

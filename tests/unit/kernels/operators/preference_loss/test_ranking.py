"""The loss of reward models: the formula in plain numbers, TRL's, and what does not change it."""

import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import trl
from hypothesis import given
from hypothesis import strategies as st

from gradbus_kernels.operators import ranking_loss

SCORES = st.lists(st.tuples(*[st.floats(-50, 50)] * 2), min_size=1, max_size=8)


def tensor(pairs):
    return torch.tensor([score for pair in pairs for score in pair], dtype=torch.float64, requires_grad=True)


@given(SCORES, st.sampled_from([0.0, 0.01, 1.0]))
def test_it_is_the_formula(pairs, center):
    expected = [math.log1p(math.exp(-abs(w - r))) + max(0.0, r - w) + center * (w + r) ** 2 for w, r in pairs]
    found = ranking_loss(tensor(pairs).detach(), center)
    assert float(found.total) == pytest.approx(math.fsum(expected) / len(pairs), rel=1e-12, abs=1e-14)
    assert float(found.accuracy) == sum(0.5 if w == r else w > r for w, r in pairs) / len(pairs)
    assert float(found.chosen) == pytest.approx(sum(w for w, _ in pairs) / len(pairs), abs=1e-12)


@given(SCORES)
def test_its_gradient_is_the_probability_of_the_wrong_order(pairs):
    scores = tensor(pairs)
    ranking_loss(scores).total.backward()
    wrong = [1.0 / (1.0 + math.exp(w - r)) / len(pairs) for w, r in pairs]
    expected = [sign * value for value in wrong for sign in (-1.0, 1.0)]
    assert scores.grad.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("center", [0.0, 0.02])
def test_it_is_trls(center):
    chosen, rejected = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    accelerator = SimpleNamespace(gather=lambda value: value, gather_for_metrics=lambda value: value)
    trainer = SimpleNamespace(
        args=SimpleNamespace(center_rewards_coefficient=center or None),
        model=SimpleNamespace(training=False),
        accelerator=accelerator,
        _metrics={"eval": defaultdict(list)},
        _total_train_tokens=0,
    )
    output = SimpleNamespace(logits=torch.cat([chosen, rejected])[:, None])
    theirs = trl.RewardTrainer.compute_loss(trainer, lambda **_: output, {})
    ours = ranking_loss(torch.stack([chosen, rejected], 1).flatten(), center)
    assert float(ours.total) == pytest.approx(float(theirs), rel=1e-6)
    assert float(ours.accuracy) == pytest.approx(trainer._metrics["eval"]["accuracy"][0])


def test_equal_scores_lose_log_2_and_a_shift_changes_nothing_without_a_centre():
    assert float(ranking_loss(torch.full((4,), 3.0)).total) == pytest.approx(math.log(2), rel=1e-15)
    scores = tensor([(1.0, 2.0), (0.5, -3.0)])
    assert float(ranking_loss(scores + 7.0).total) == pytest.approx(float(ranking_loss(scores).total), rel=1e-12)


@pytest.mark.parametrize(("scores", "center", "name"), [([1.0], 0.0, "scores"), ([], 0.0, "scores"), ([1.0, 2.0], -0.1, "center")])
def test_what_is_no_pair_is_refused(scores, center, name):
    with pytest.raises(ValueError, match=name):
        ranking_loss(torch.tensor(scores), center)

"""The fused operator against `sample` on the whole logits."""

from __future__ import annotations

import math

import pytest
import torch

from gradbus_kernels.operators import Sampling, linear_sample, sample, sample_linear, using


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(sample_linear, "_TILE", 24)
    monkeypatch.setattr(sample_linear, "_BLOCK", 8)


@pytest.fixture(params=["reference", "cpu"])
def on_cpu(request):
    with using(request.param):
        yield request.param


def inputs(rows, width, vocabulary, dtype=torch.float32, draws=7):
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, width, generator=generator).to(dtype)
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype)
    return hidden, weight, torch.randint(2**62, (rows, draws), generator=generator), torch.arange(draws).expand(rows, draws)


@pytest.mark.parametrize(("rows", "vocabulary"), [(5, 101), (1, 24), (3, 1), (2, 49)])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7), Sampling(greedy=True), Sampling(torch.tensor(1.9), greedy=torch.tensor(False))], ids=range(4)
)
def test_it_draws_what_sample_draws(on_cpu, rows, vocabulary, sampling):
    if isinstance(sampling.temperature, torch.Tensor):
        sampling = Sampling(sampling.temperature.expand(rows), greedy=torch.arange(rows) % 2 == 0)
    hidden, weight, *draws = inputs(rows, 6, vocabulary)
    fused, whole = linear_sample(hidden, weight, *draws, sampling), sample(hidden @ weight.T, *draws, sampling)
    assert torch.equal(fused.ids, whole.ids)
    torch.testing.assert_close(fused[1:], whole[1:], atol=5e-6, rtol=1e-6)


def test_logprobs_stay_near_in_low_precision(on_cpu, dtype):
    hidden, weight, *draws = inputs(4, 16, 90, dtype)
    drawn = linear_sample(hidden, weight, *draws)
    exact = torch.log_softmax(hidden.double() @ weight.double().T, 1).gather(1, drawn.ids)
    naive = torch.log_softmax((hidden @ weight.T).double(), 1).gather(1, drawn.ids)
    assert (drawn.logprobs - exact).abs().max() <= 2 * (naive - exact).abs().max() + 5e-6


def test_draws_follow_the_distribution():
    draws, vocabulary = 8_000, 30
    hidden, weight, *_ = inputs(1, 4, vocabulary)
    with using("cpu"):
        drawn = linear_sample(hidden, weight, torch.arange(draws)[None], torch.zeros(1, draws, dtype=torch.int64))
    expected = torch.softmax(hidden.double() @ weight.double().T, 1)[0] * draws
    seen = torch.bincount(drawn.ids[0], minlength=vocabulary)
    likely = expected > 5
    chi_square = ((seen - expected)[likely] ** 2 / expected[likely]).sum().item()
    assert chi_square < int(likely.sum()) + 4.5 * math.sqrt(2 * int(likely.sum()))


def test_one_draw_a_row_and_no_rows_have_the_shape_of_the_seeds(on_cpu):
    hidden, weight, seeds, positions = inputs(3, 6, 50)
    drawn = linear_sample(hidden, weight, seeds[:, 0], positions[:, 0])
    assert torch.equal(drawn.ids, linear_sample(hidden, weight, seeds, positions).ids[:, 0])
    assert linear_sample(hidden[:0], weight, seeds[:0, 0], positions[:0, 0]).ids.shape == (0,)


def test_extreme_hidden_states_take_the_likeliest(on_cpu):
    hidden, weight, *draws = inputs(2, 6, 50)
    drawn = linear_sample(hidden * 1e4, weight, *draws)
    assert torch.equal(drawn.ids, (hidden @ weight.T).argmax(1, keepdim=True).expand(2, 7))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden": torch.ones(3, 5)}, r"weight: has shape \(7, 4\)"),
        ({"weight": torch.ones(7, 4, dtype=torch.bfloat16)}, "weight: is torch.bfloat16; pass torch.float32"),
        ({"weight": torch.ones(0, 4)}, "weight: has an empty vocabulary"),
        ({"seeds": torch.zeros(2, dtype=torch.int64)}, "seeds: has shape"),
        ({"sampling": Sampling(top_k=3)}, "top_k: needs the logits whole"),
        ({"sampling": Sampling(top_p=torch.tensor([1.0, 1.0, 0.5]))}, "top_p: needs the logits whole"),
        ({"hidden": torch.tensor([[0.0] * 4, [math.nan] * 4, [0.0] * 4])}, "hidden: row 1 holds NaN"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(on_cpu, changed, words):
    numbers = torch.zeros(3, dtype=torch.int64)
    arguments = {"hidden": torch.ones(3, 4), "weight": torch.ones(7, 4), "seeds": numbers, "positions": numbers} | changed
    with pytest.raises(ValueError, match=f"^{words}"):
        linear_sample(**arguments)

"""The fused operator against `sample` on the whole logits."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from covering import covering

from gradbus_kernels.operators import SamplingParams, linear_sample, sample, softcapped, using
from gradbus_kernels.operators.base.block_sizes import INTERPRETED
from gradbus_kernels.operators.linear_sample import cpu

CUT_OFFS = [SamplingParams(top_k=5), SamplingParams(top_p=0.8), SamplingParams(0.8, min_p=0.1), SamplingParams(0.9, 12, 0.7, 0.02)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(cpu, "_TILE", 24)
    monkeypatch.setattr(cpu, "_BLOCK", 8)
    if find_spec("triton") is not None:
        from gradbus_kernels.operators.linear_sample import triton as head_on_gpu
        from gradbus_kernels.operators.sample import triton as on_gpu

        groups = replace(on_gpu.LAUNCH, group=4, candidates=8, block=32)
        monkeypatch.setattr(on_gpu, "LAUNCH", groups)
        monkeypatch.setattr(head_on_gpu, "GROUPS", groups)
        monkeypatch.setattr(head_on_gpu, "LAUNCH", replace(head_on_gpu.LAUNCH, rows=16, columns=32, inner_bytes=64))


def inputs(rows, width, vocabulary, dtype=torch.float32, draws=7):
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, width, generator=generator).to(dtype)
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype)
    return hidden, weight, torch.randint(2**62, (rows, draws), generator=generator), torch.arange(draws).expand(rows, draws)


def logits_of(hidden, weight, implementation):
    """Rounded once, as each implementation rounds: Triton's interpreter cuts a bfloat16's lower bits off."""
    logits = hidden.float() @ weight.float().T
    if implementation == "triton" and hidden.dtype == torch.bfloat16 and INTERPRETED:
        logits = (logits.view(torch.int32) & ~0xFFFF).view(torch.float32)
    return logits.to(hidden.dtype)


PLAIN = [SamplingParams(), SamplingParams(0.7), SamplingParams(greedy=True), SamplingParams(torch.tensor(1.9), greedy=torch.tensor(False))]


@pytest.mark.parametrize(("shape", "number"), covering([(5, 101), (1, 24), (3, 1), (2, 49)], range(len(PLAIN))))
def test_it_draws_what_sample_draws(implementation, shape, number):
    (rows, vocabulary), sampling = shape, PLAIN[number]
    if isinstance(sampling.temperature, torch.Tensor):
        sampling = SamplingParams(sampling.temperature.expand(rows), greedy=torch.arange(rows) % 2 == 0)
    hidden, weight, *draws = inputs(rows, 6, vocabulary)
    fused, whole = linear_sample(hidden, weight, *draws, sampling), sample(hidden @ weight.T, *draws, sampling)
    assert torch.equal(fused.ids, whole.ids)
    torch.testing.assert_close(fused[1:], whole[1:], atol=5e-6, rtol=1e-6)


@pytest.mark.parametrize("sampling", CUT_OFFS, ids=str)
def test_cut_offs_are_those_of_sample(implementation, dtype, sampling):
    hidden, weight, *draws = inputs(3, 6, 101, dtype, draws=2)
    fused = linear_sample(hidden, weight, *draws, sampling)
    with using("reference"):  # of the same logits: a product of another order could move a token over the edge
        whole = sample(logits_of(hidden, weight, implementation), *draws, sampling)
    assert torch.equal(fused.ids, whole.ids)
    torch.testing.assert_close(fused[1:], whole[1:], atol=5e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(0.7), CUT_OFFS[3], *(pytest.param(one, marks=pytest.mark.slow) for one in CUT_OFFS[:3])], ids=str
)
def test_logits_are_bounded_before_the_draw(implementation, sampling):
    hidden, weight, *draws = inputs(3, 6, 101, draws=2)
    fused = linear_sample(hidden, weight, *draws, sampling, softcap=1.5)
    whole = sample(softcapped(hidden @ weight.T, 1.5), *draws, sampling)
    assert torch.equal(fused.ids, whole.ids)
    torch.testing.assert_close(fused[1:], whole[1:], atol=5e-6, rtol=1e-5)


def test_each_row_may_have_its_own_settings(implementation):
    hidden, weight, *draws = inputs(4, 6, 101, draws=2)
    own = [SamplingParams(), *CUT_OFFS[1:]]
    names = ("temperature", "top_k", "top_p", "min_p")
    together = linear_sample(
        hidden, weight, *draws, SamplingParams(*(torch.tensor([getattr(each, name) for each in own]) for name in names))
    )
    whole = [sample((hidden @ weight.T)[row : row + 1], *(part[row : row + 1] for part in draws), each) for row, each in enumerate(own)]
    for found, expected in zip(together, zip(*whole, strict=True), strict=True):
        torch.testing.assert_close(found, torch.cat(expected), atol=5e-6, rtol=1e-6)


@pytest.mark.parametrize("sampling", [SamplingParams(), CUT_OFFS[3]], ids=str)
def test_the_kernels_bits_of_a_row_do_not_depend_on_the_others(sampling):
    pytest.importorskip("triton")
    hidden, weight, *draws = inputs(17, 40, 49, draws=1)  # more rows than a tile has
    with using("triton"):
        together = linear_sample(hidden, weight, *draws, sampling)
        for row in (3, 16):
            alone = linear_sample(hidden[row : row + 1], weight, *(part[row : row + 1] for part in draws), sampling)
            assert all(torch.equal(one[0], many[row]) for one, many in zip(alone, together, strict=True))


def test_logprobs_stay_near_in_low_precision(implementation, dtype):
    hidden, weight, *draws = inputs(4, 16, 90, dtype)
    drawn = linear_sample(hidden, weight, *draws)
    exact = torch.log_softmax(hidden.double() @ weight.double().T, 1).gather(1, drawn.ids)
    naive = torch.log_softmax((hidden @ weight.T).double(), 1).gather(1, drawn.ids)
    assert (drawn.logprobs - exact).abs().max() <= 2 * (naive - exact).abs().max() + 5e-6


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_k=9)], ids=str)
def test_draws_follow_the_distribution(sampling):
    draws, vocabulary = 8_000, 30
    hidden, weight, *_ = inputs(1, 4, vocabulary)
    with using("cpu"):
        drawn = linear_sample(hidden, weight, torch.arange(draws)[None], torch.zeros(1, draws, dtype=torch.int64), sampling)
    logits = (hidden.double() @ weight.double().T)[0]
    kept = logits >= logits.sort().values[-sampling.top_k]  # all of them for 0
    expected = torch.softmax(logits.masked_fill(~kept, -math.inf), 0) * draws
    seen = torch.bincount(drawn.ids[0], minlength=vocabulary)
    assert not seen[~kept].any()
    likely = expected > 5
    chi_square = ((seen - expected)[likely] ** 2 / expected[likely]).sum().item()
    assert chi_square < int(likely.sum()) + 4.5 * math.sqrt(2 * int(likely.sum()))


def test_one_draw_a_row_and_no_rows_have_the_shape_of_the_seeds(implementation):
    hidden, weight, seeds, positions = inputs(3, 6, 50)
    drawn = linear_sample(hidden, weight, seeds[:, 0], positions[:, 0])
    assert torch.equal(drawn.ids, linear_sample(hidden, weight, seeds, positions).ids[:, 0])
    assert linear_sample(hidden[:0], weight, seeds[:0, 0], positions[:0, 0]).ids.shape == (0,)


def test_extreme_hidden_states_take_the_likeliest(implementation):
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
        ({"sampling": SamplingParams(top_k=-3)}, "top_k: holds"),
        ({"sampling": SamplingParams(top_p=torch.tensor([1.0, 1.0]))}, "top_p: has shape"),
        ({"hidden": torch.tensor([[0.0] * 4, [math.nan] * 4, [0.0] * 4])}, "hidden · weightᵀ: row 1 holds NaN"),
        ({"weight": torch.full((7, 4), math.nan)}, "hidden · weightᵀ: row 0 holds NaN"),
        ({"hidden": torch.full((3, 4), math.inf), "sampling": SamplingParams(top_k=3)}, "hidden · weightᵀ: row 0 holds NaN"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(implementation, changed, words):
    numbers = torch.zeros(3, dtype=torch.int64)
    arguments = {"hidden": torch.ones(3, 4), "weight": torch.ones(7, 4), "seeds": numbers, "positions": numbers} | changed
    with pytest.raises(ValueError, match=f"^{words}"):
        linear_sample(**arguments)

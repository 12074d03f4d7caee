"""Samples follow the requested distribution, equal the reference's, and do not depend on other rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from covering import covering
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.operators import SamplingParams, counter_uniform, sample, sample_at, sample_reference, using
from gradbus_kernels.operators.sample import cpu

SETTINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(top_k=5),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.1, temperature=1.5),
    SamplingParams(top_k=12, top_p=0.7, min_p=0.02, temperature=0.9),
    SamplingParams(top_p=0.5, greedy=True),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, request):
    """So that small shapes take the ways of large ones."""
    monkeypatch.setattr(cpu, "_SHORT", 24)
    monkeypatch.setattr(cpu, "_BLOCK", 4)
    monkeypatch.setattr(cpu, "_TILE", 160)
    if "implementation" in request.fixturenames and request.getfixturevalue("implementation") == "triton":
        from gradbus_kernels.operators.sample import triton as gpu

        monkeypatch.setattr(gpu, "LAUNCH", replace(gpu.LAUNCH, slice=16, group=4, candidates=4, block=32))


def rows(count, vocabulary, dtype=torch.float32, seed=0, draws=None):
    """Logits without ties, seeds and positions."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.stack([torch.randperm(vocabulary, generator=generator) for _ in range(count)]) * (12.0 / vocabulary) - 6.0
    shape = (count,) if draws is None else (count, draws)
    seeds = torch.randint(2**62, shape, generator=generator)
    return logits.to(dtype), seeds, torch.randint(1000, shape, generator=generator)


def exact_probabilities(logits, sampling):
    """Of one row, step by step in float64."""
    probabilities = torch.softmax(logits.double() / sampling.temperature, 0)
    order = probabilities.argsort(descending=True)
    kept = order[: sampling.top_k] if sampling.top_k else order
    cumulative = probabilities[kept].cumsum(0) / probabilities[kept].sum()
    kept = kept[: int((cumulative < sampling.top_p).sum()) + 1]
    kept = kept[probabilities[kept] >= sampling.min_p * probabilities.max()]
    support = torch.zeros_like(probabilities).index_fill_(0, kept[:1] if sampling.greedy else kept, 1.0)
    return probabilities * support / (probabilities * support).sum(), probabilities


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("implementation_on_cpu", ["reference", "cpu"])
def test_draws_follow_the_distribution(implementation_on_cpu, sampling):
    draws = 60_000
    logits, _, _ = rows(1, 40)
    with using(implementation_on_cpu):
        drawn = sample(logits, torch.arange(draws)[None], torch.full((1, draws), 3), sampling)
    expected, whole = exact_probabilities(logits[0], sampling)
    counts = torch.bincount(drawn.ids[0], minlength=40).double()
    assert not counts[expected == 0].any()
    inside = expected > 0
    chi_square = ((counts - draws * expected)[inside] ** 2 / (draws * expected[inside])).sum().item()
    freedom = int(inside.sum()) - 1
    assert chi_square <= freedom + 4.5 * math.sqrt(2 * freedom)  # beyond the 0.01 % point
    torch.testing.assert_close(drawn.logprobs[0].double(), whole.log()[drawn.ids[0]], atol=2e-6, rtol=1e-6)
    if not sampling.greedy:
        torch.testing.assert_close(drawn.support_logprobs[0].double(), expected.log()[drawn.ids[0]], atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_every_implementation_draws_what_the_reference_draws(implementation, dtype, sampling):
    for count, vocabulary in ((1, 41), (1, 7), (2, 1)):
        logits, seeds, positions = rows(count, vocabulary, dtype, draws=2)
        ours, reference = sample(logits, seeds, positions, sampling), sample_reference(logits, seeds, positions, sampling)
        assert torch.equal(ours.ids, reference.ids)
        torch.testing.assert_close(ours[1:], reference[1:], atol=3e-6, rtol=1e-6)
        assert (ours.ids.dtype, ours.logprobs.dtype, ours.support_logprobs.dtype) == (torch.int64, torch.float32, torch.float32)


# With one candidate every support is wide, with four some are.
@pytest.mark.parametrize(("candidates", "sampling"), covering([1, 4], SETTINGS[2:-1]), ids=str)
def test_a_support_wider_than_the_candidates_is_found_too(candidates, sampling, monkeypatch):
    gpu = gpu_sample()
    monkeypatch.setattr(gpu, "LAUNCH", replace(gpu.LAUNCH, slice=16, group=4, candidates=candidates, block=32))
    logits, seeds, positions = rows(2, 57, torch.bfloat16, draws=3)
    with using("triton"):
        ours = sample(logits, seeds, positions, sampling)
    reference = sample_reference(logits, seeds, positions, sampling)
    assert torch.equal(ours.ids, reference.ids)
    torch.testing.assert_close(ours[1:], reference[1:], atol=3e-6, rtol=1e-6)


def test_a_support_among_the_candidates_is_found_without_another_reading(monkeypatch):
    gpu, later = gpu_sample(), []
    monkeypatch.setattr(gpu, "LAUNCH", replace(gpu.LAUNCH, slice=16, group=4, candidates=8, block=32))
    logits, seeds, positions = rows(2, 200, draws=6)
    draw = gpu.draw_read

    def without_the_others(logits, read, uniforms, columns):
        floor = read.maxima.sort(1, descending=True).values[:, 7:8]
        hidden = (read.maxima < floor).repeat_interleave(4, 1)
        later.append(int(hidden.sum()))
        return draw(logits.masked_fill(hidden, 1e4), read, uniforms, columns)

    for sampling in (SamplingParams(top_k=7), SamplingParams(top_p=0.3), SamplingParams(min_p=0.7), SamplingParams(0.8, 6, 0.6, 0.01)):
        with using("triton"):
            expected = sample(logits, seeds, positions, sampling)
            with monkeypatch.context() as patch:
                patch.setattr(gpu, "draw_read", without_the_others)
                found = sample(logits, seeds, positions, sampling)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert later == [2 * (200 - 8 * 4)] * 4


@pytest.mark.parametrize(("candidates", "sampling"), [(64, SETTINGS[1]), (64, SETTINGS[5]), (2, SETTINGS[3])], ids=str)
def test_the_kernels_give_each_token_its_share_of_evenly_spread_numbers(candidates, sampling, monkeypatch):
    gpu, draws = gpu_sample(), 80
    monkeypatch.setattr(gpu, "LAUNCH", replace(gpu.LAUNCH, slice=16, group=4, candidates=candidates, block=32))
    logits, _, _ = rows(1, 41)
    with using("triton"):
        drawn = sample_at(logits, (torch.arange(draws, dtype=torch.float64)[None] + 0.5) / draws, sampling)
    expected, _ = exact_probabilities(logits[0], sampling)
    assert (torch.bincount(drawn.ids[0], minlength=41) - draws * expected).abs().max() <= 1.0
    assert drawn.ids[0].diff().min() >= 0


def gpu_sample():
    pytest.importorskip("triton")
    from gradbus_kernels.operators.sample import triton as gpu

    return gpu


@settings(max_examples=60)
@given(
    st.integers(1, 4),
    st.integers(1, 200),
    st.builds(
        SamplingParams,
        st.sampled_from([0.3, 1.0, 2.0]),
        st.integers(0, 210),
        st.one_of(st.just(1.0), st.floats(1e-6, 0.999)),
        st.one_of(st.just(0.0), st.floats(0, 1)),
        st.booleans(),
    ),
    st.integers(0, 99),
)
def test_any_settings_on_the_cpu(count, vocabulary, sampling, seed):
    logits, seeds, positions = rows(count, vocabulary, seed=seed, draws=5)
    with using("cpu"):
        ours = sample(logits, seeds, positions, sampling)
    reference = sample_reference(logits, seeds, positions, sampling)
    # A support whose edge lies within rounding of the share or the bound asked for may be either: then masses tell.
    same = (ours.ids == reference.ids) | ((ours.support_logprobs - reference.support_logprobs).abs() > 1e-5)
    assert same.all()
    torch.testing.assert_close(
        ours.logprobs[ours.ids == reference.ids], reference.logprobs[ours.ids == reference.ids], atol=3e-6, rtol=1e-6
    )


def test_each_row_may_have_its_own_settings_and_bits_of_its_own(implementation):
    logits, seeds, positions = rows(4, 41, torch.bfloat16)
    own = [SamplingParams(), SamplingParams(0.5, 7), SamplingParams(1.3, 0, 0.6, 0.01), SamplingParams(1.0, 3, greedy=True)]
    by_row = SamplingParams(
        *(torch.tensor([getattr(each, name) for each in own]) for name in ("temperature", "top_k", "top_p", "min_p", "greedy"))
    )
    together = sample(logits, seeds, positions, by_row)
    for row, sampling in enumerate(own):
        alone = sample(logits[row : row + 1], seeds[row : row + 1], positions[row : row + 1], sampling)
        assert all(torch.equal(one[0], many[row]) for one, many in zip(alone, together, strict=True))


@pytest.mark.parametrize("vocabulary", [1000, 1 << 16])
def test_long_rows_have_bits_of_their_own_on_two_threads_too(vocabulary, monkeypatch):
    monkeypatch.undo()
    logits, seeds, positions = rows(5, vocabulary, draws=4)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for sampling in (SamplingParams(), SamplingParams(top_p=0.9), SamplingParams(top_k=50)):
                with using("cpu"):
                    together = sample(logits, seeds, positions, sampling)
                    alone = sample(logits[2:3], seeds[2:3], positions[2:3], sampling)
                assert all(torch.equal(one[0], many[2]) for one, many in zip(alone, together, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_a_support_of_the_whole_vocabulary_changes_nothing(implementation):
    logits, seeds, positions = rows(1, 40)
    plain = sample(logits, seeds, positions)
    assert torch.equal(plain.logprobs, plain.support_logprobs)
    for sampling in (SamplingParams(top_k=40), SamplingParams(min_p=1e-30)):
        wide = sample(logits, seeds, positions, sampling)
        assert torch.equal(wide.ids, plain.ids)
        torch.testing.assert_close(wide[1:], plain[1:], atol=1e-6, rtol=1e-6)


def test_without_cut_offs_draws_are_the_ones_that_recorded_runs_hold():
    """Bit for bit what the engine drew before there was more than a temperature; changing this changes runs."""
    logits, seeds, positions = rows(9, 500, draws=4)
    logits = logits + torch.randn(9, 500, generator=torch.Generator().manual_seed(3))
    greedy = torch.arange(9) % 3 == 0
    for temperature in (1.0, 0.7):
        uniforms = counter_uniform(seeds, positions)
        logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
        cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
        ids = torch.searchsorted(cumulative, uniforms * cumulative[:, -1:], right=True)
        ids = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), ids)
        with using("cpu"):
            for sampling in (SamplingParams(temperature, greedy=greedy), SamplingParams(torch.full((9,), temperature), greedy=greedy)):
                drawn = sample_at(logits, uniforms, sampling)
                assert torch.equal(drawn.ids, ids)
                assert torch.equal(drawn.logprobs, logprobs.gather(-1, ids))


def test_several_draws_from_a_row_are_those_from_as_many_equal_rows(implementation):
    logits, seeds, positions = rows(1, 40, torch.bfloat16, draws=2)
    for sampling in (SamplingParams(), SamplingParams(top_k=9)):
        beside = sample(logits, seeds, positions, sampling)
        alone = sample(logits.repeat_interleave(2, 0), seeds.flatten(), positions.flatten(), sampling)
        assert all(torch.equal(many.flatten(), one) for many, one in zip(beside, alone, strict=True))


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_k=4), SamplingParams(top_p=0.9999)], ids=str)
def test_a_token_of_probability_zero_is_never_drawn(implementation, sampling):
    logits = torch.full((2, 36), -math.inf, dtype=torch.bfloat16)
    logits[:, 7] = 0.0
    logits[1, [3, 20]] = torch.tensor([0.01, -0.01], dtype=torch.bfloat16)
    draws = 20
    drawn = sample(logits, torch.arange(2 * draws).view(2, draws), torch.zeros(2, draws, dtype=torch.int64), sampling)
    assert set(drawn.ids[0].tolist()) == {7}
    assert not drawn.logprobs[0].any()
    assert set(drawn.ids[1].tolist()) == {3, 7, 20}


def test_tokens_tied_at_the_edge_are_all_in_the_support(implementation):
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0] + [-1.0] * 30])
    drawn = sample(logits, torch.arange(30)[None], torch.zeros(1, 30, dtype=torch.int64), SamplingParams(top_k=2))
    assert set(drawn.ids[0].tolist()) == {0, 1, 2, 3}


def test_greedy_takes_the_first_of_the_likeliest_and_leaves_other_rows_alone(implementation):
    logits, seeds, positions = rows(4, 50)
    logits[0, [31, 9]] = 100.0
    drawn = sample(logits, seeds, positions)
    mixed = sample(logits, seeds, positions, SamplingParams(greedy=torch.tensor([True, False, True, False])))
    assert mixed.ids[0] == 9
    assert mixed.ids[2] == logits[2].argmax()
    assert torch.equal(mixed.ids[1::2], drawn.ids[1::2])


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_extreme_logits_are_drawn_from_as_their_differences(implementation, offset):
    logits, seeds, positions = rows(1, 30)
    logits = (logits * 64).round() / 64  # so that the offset rounds nothing away
    for sampling in (SamplingParams(), SamplingParams(top_p=0.8)):
        near, far = (sample(values, seeds, positions, sampling) for values in (logits, logits + offset))
        assert torch.equal(near.ids, far.ids)
        torch.testing.assert_close(near[1:], far[1:], atol=2e-3, rtol=0)


def test_no_rows_and_no_draws_are_fine(implementation):
    nothing = torch.empty(0, dtype=torch.int64)
    assert sample(torch.empty(0, 5), nothing, nothing).ids.shape == (0,)
    assert sample(torch.zeros(2, 5), nothing.view(0).expand(2, 0), nothing.expand(2, 0)).ids.shape == (2, 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(top_k=3)], ids=str)
def test_logits_that_are_not_finite_are_refused_or_show_in_the_logprob(implementation, bad, sampling):
    logits, seeds, positions = rows(2, 37, torch.bfloat16)
    logits[1, 30] = bad
    with pytest.raises(ValueError, match=r"^logits: row 1 holds NaN"):
        sample(logits, seeds, positions, sampling)
    drawn = sample_at(logits, counter_uniform(seeds, positions), sampling)
    assert drawn.logprobs.isfinite().tolist() == [True, False]
    assert drawn.ids.max() < 37


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"logits": torch.ones(3)}, "logits: has shape"),
        ({"logits": torch.ones(3, 0)}, "logits: has an empty vocabulary"),
        ({"seeds": torch.zeros(3)}, "seeds: is torch.float32; pass int64"),
        ({"seeds": torch.zeros(2, dtype=torch.int64)}, r"seeds: has shape \(2,\); pass \(3\) or \(3, any\)"),
        ({"seeds": torch.zeros(3, dtype=torch.int64, device="meta")}, "seeds: is on meta"),
        ({"positions": torch.zeros(3, 1, dtype=torch.int64)}, r"positions: has shape \(3, 1\); pass \(3,\), as seeds"),
        ({"positions": torch.tensor([0, -1, 0])}, "positions: holds a negative number"),
        ({"sampling": SamplingParams(temperature=0.0)}, r"temperature: holds \[0.0\]; .* pass greedy"),
        ({"sampling": SamplingParams(temperature=torch.tensor([1.0, math.nan, 1.0]))}, r"temperature: holds \[nan\]"),
        ({"sampling": SamplingParams(top_k=-1)}, "top_k: holds"),
        ({"sampling": SamplingParams(top_k=torch.tensor([1.0, 2.5, 0.0]))}, r"top_k: holds \[2.5\]; pass integers"),
        ({"sampling": SamplingParams(top_p=math.nan)}, r"top_p: holds \[nan\]"),
        ({"sampling": SamplingParams(top_p=torch.tensor([1.0, 0.5, 1.5]))}, r"top_p: holds \[1.5\]; pass numbers in"),
        ({"sampling": SamplingParams(top_p=torch.ones(2))}, r"top_p: has shape \(2,\); pass a number or \(3\)"),
        ({"sampling": SamplingParams(min_p=2.0)}, "min_p: holds"),
        ({"sampling": SamplingParams(greedy=torch.zeros(3))}, "greedy: holds"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(changed, words):
    numbers = torch.zeros(3, dtype=torch.int64)
    arguments = {"logits": torch.ones(3, 5), "seeds": numbers, "positions": numbers} | changed
    with pytest.raises(ValueError, match=f"^{words}"):
        sample(**arguments)

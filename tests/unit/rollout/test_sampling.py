from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradbus_kernels.sampling import counter_uniform, sample_tokens

MASK = (1 << 64) - 1


def uniforms(seeds: int) -> torch.Tensor:
    """The first draw of each of so many streams, a row each."""
    return counter_uniform(torch.arange(seeds)[:, None], torch.zeros(1, dtype=torch.long))


def splitmix64(seed: int, position: int) -> int:
    state = (seed + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**31))
def test_uniforms_are_splitmix64(seed, position):
    uniform = counter_uniform(torch.tensor([seed]), torch.tensor([position])).item()
    assert uniform == (splitmix64(seed, position) >> 12) / 2**52
    assert 0.0 <= uniform < 1.0


def test_samples_follow_the_softmax():
    draws, temperature = 200_000, 0.7
    logits = torch.randn(13, generator=torch.Generator().manual_seed(5))
    tokens, _ = sample_tokens(logits[None], uniforms(draws).T, None, temperature)
    expected = torch.softmax(logits.double() / temperature, -1).numpy() * draws
    chi_square = ((np.bincount(tokens[0].numpy(), minlength=13) - expected) ** 2 / expected).sum()
    assert chi_square < 32.9  # the 0.1 % point with 12 degrees of freedom


def test_positions_of_one_seed_are_independent_draws():
    uniforms = counter_uniform(torch.full((100_000,), 7), torch.arange(100_000)).numpy()
    assert abs(uniforms.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(uniforms[:-1], uniforms[1:])[0, 1]) < 0.015


def test_logprobs_are_the_log_softmax_at_the_temperature():
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(1)) * 5
    tokens, logprobs = sample_tokens(logits, counter_uniform(torch.arange(64)[:, None], torch.arange(3)), None, 1.7)
    reference = torch.log_softmax(logits.double() / 1.7, -1).gather(-1, tokens)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), reference, atol=1e-5, rtol=0)


def test_draws_from_one_row_are_those_from_as_many_equal_rows():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(4))
    draws = uniforms(3 * 20).view(3, 20)
    beside = sample_tokens(logits, draws, None, 1.0)
    alone = sample_tokens(logits.repeat_interleave(20, 0), draws.view(-1, 1), None, 1.0)
    assert torch.equal(beside[0].flatten(), alone[0].flatten())
    assert torch.equal(beside[1].flatten(), alone[1].flatten())


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((5000, 6), float("-inf"))
    logits[:, [1, 4]] = 0.0
    tokens, _ = sample_tokens(logits, uniforms(5000), None, 1.0)
    assert set(tokens.flatten().tolist()) == {1, 4}


def test_greedy_rows_take_the_likeliest_token_and_leave_the_others_alone():
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(2))
    drawn, _ = sample_tokens(logits, uniforms(8), None, 1.0)
    mixed, _ = sample_tokens(logits, uniforms(8), torch.tensor([True, False] * 4), 1.0)
    assert torch.equal(mixed[::2], logits.argmax(-1, keepdim=True)[::2])
    assert torch.equal(mixed[1::2], drawn[1::2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_show_in_the_logprob(bad):
    logits = torch.zeros(4, 9)
    logits[2, 3] = bad
    tokens, logprobs = sample_tokens(logits, uniforms(4), None, 1.0)
    assert logprobs.isfinite().flatten().tolist() == [True, True, False, True]
    assert tokens.max() < 9

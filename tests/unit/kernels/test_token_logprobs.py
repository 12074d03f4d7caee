"""Chunked log-probabilities against plain autograd in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.token_logprobs import token_logprobs, token_logprobs_reference


def inputs(tokens, width, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    return hidden, weight, torch.randint(vocabulary, (tokens,), generator=generator)


def values_and_gradients(operator, hidden, weight, *arguments):
    """Outputs and the gradients of a weighted sum of them, so that every token's gradient differs."""
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    logprobs, entropy = operator(hidden, weight, *arguments)
    factors = torch.linspace(-1.0, 2.0, len(logprobs), dtype=hidden.dtype)
    (logprobs.dot(factors) + entropy.dot(factors.flip(0).sin())).backward()
    return logprobs.detach(), entropy.detach(), hidden.grad, weight.grad


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(2, 40), st.integers(1, 14), st.sampled_from([0.5, 1.0, 1.7]))
def test_values_and_gradients_equal_the_plain_ones_for_every_chunk_size(tokens, width, vocabulary, chunk, temperature):
    hidden, weight, targets = inputs(tokens, width, vocabulary)
    chunked = values_and_gradients(token_logprobs, hidden, weight, targets, temperature, chunk)
    plain = values_and_gradients(token_logprobs_reference, hidden, weight, targets, temperature)
    for ours, reference in zip(chunked, plain, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-10)


def test_float32_stays_within_rounding_of_float64():
    hidden, weight, targets = inputs(64, 32, 500)
    exact = values_and_gradients(token_logprobs_reference, hidden, weight, targets, 1.0)
    ours = values_and_gradients(token_logprobs, hidden.float(), weight.float(), targets, 1.0)
    for value, reference in zip(ours, exact, strict=True):
        torch.testing.assert_close(value.double(), reference, rtol=1e-4, atol=1e-4)


def test_a_certain_token_has_logprob_zero_and_no_entropy():
    logprobs, entropy = token_logprobs(torch.tensor([[1000.0]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([0]))
    assert logprobs.tolist() == [0.0]
    assert entropy.tolist() == [0.0]


def test_equal_logits_give_the_logarithm_of_the_vocabulary():
    logprobs, entropy = token_logprobs(torch.zeros(1, 3), torch.randn(8, 3), torch.tensor([5]))
    assert logprobs.item() == pytest.approx(-torch.tensor(8.0).log().item())
    assert entropy.item() == pytest.approx(torch.tensor(8.0).log().item())


def test_a_frozen_head_leaves_the_gradient_as_it_is():
    hidden, weight, targets = inputs(6, 5, 11)
    hidden.requires_grad_()
    found = [
        torch.autograd.grad(token_logprobs(hidden, head, targets)[0].sum(), hidden)[0] for head in (weight, weight.clone().requires_grad_())
    ]
    assert torch.equal(*found)

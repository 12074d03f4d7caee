"""Attention with sinks against a float64 softmax over all tokens and the sink."""

from __future__ import annotations

import pytest
import torch

from gradbus_kernels.operators import (
    PrefixLayout,
    prefix_shared_attention,
    prefix_shared_attention_with_sinks,
    prefix_shared_attention_with_sinks_reference,
)

LAYOUTS = {
    "short": PrefixLayout.of_lengths([3, 17, 2, 2, 19], [None, None, 0, 0, 1]),
    "short and long": PrefixLayout.of_lengths([5, 40, 2, 50, 7, 3, 3, 20], [None, None, 0, 1, None, 0, 1, 1]),
    "long": PrefixLayout.of_lengths([70, 20, 20], [None, 0, 0]),
    "one token": PrefixLayout.of_lengths([1], [None]),
}
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def draw(layout, seed=0):
    torch.manual_seed(seed)
    tokens = [torch.randn(layout.tokens, heads, 16, dtype=torch.float64) for heads in (2, 1, 1, 2)]
    return [*tokens[:3], torch.randn(2, dtype=torch.float64), tokens[3]]


def results(operator, tensors, layout, window, dtype):
    *inputs, upstream = (tensor.to(dtype) for tensor in tensors)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    output = operator(*inputs, layout, window)
    return [output.detach(), *torch.autograd.grad(output, inputs, upstream)]


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize(
    ("name", "window", "dtype"),
    [
        ("short", 6, torch.float32),
        ("long", None, torch.float32),
        ("one token", None, torch.float32),
        ("short and long", 70, torch.bfloat16),
        pytest.param("short and long", 70, torch.float32, marks=pytest.mark.slow),
        pytest.param("short and long", 70, torch.float16, marks=pytest.mark.slow),
    ],
)
def test_output_and_gradients_are_those_of_a_softmax_that_counts_the_sink(name, window, dtype):
    tensors = [tensor.to(dtype).double() for tensor in draw(LAYOUTS[name])]
    exact = results(prefix_shared_attention_with_sinks_reference, tensors, LAYOUTS[name], window, torch.float64)
    found = results(prefix_shared_attention_with_sinks, tensors, LAYOUTS[name], window, dtype)
    for truth, ours in zip(exact, found, strict=True):
        assert ours.dtype == dtype
        size = max(1.0, float(truth.abs().max()))
        torch.testing.assert_close(ours.double(), truth, atol=BOUNDS[dtype] * size, rtol=0.0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_in_float64_it_is_exact(name):
    tensors = draw(LAYOUTS[name])
    exact = results(prefix_shared_attention_with_sinks_reference, tensors, LAYOUTS[name], 6, torch.float64)
    for truth, ours in zip(exact, results(prefix_shared_attention_with_sinks, tensors, LAYOUTS[name], 6, torch.float64), strict=True):
        torch.testing.assert_close(ours, truth, atol=1e-12, rtol=1e-12)


def test_a_sink_far_below_all_scores_changes_nothing_and_one_far_above_hides_everything():
    layout = LAYOUTS["short and long"]
    query, key, value, _, _ = (tensor.float() for tensor in draw(layout))
    plain = prefix_shared_attention(query, key, value, layout)
    low, high = (prefix_shared_attention_with_sinks(query, key, value, torch.full((2,), at), layout) for at in (-1e4, 1e4))
    torch.testing.assert_close(low, plain, atol=1e-6, rtol=0.0)
    assert not high.any()


def test_a_segments_bits_do_not_depend_on_its_neighbours():
    lengths, parents = [100, 30], [None, 0]
    alone, beside = PrefixLayout.of_lengths(lengths, parents), PrefixLayout.of_lengths([*lengths, 110], [*parents, None])
    tensors = [tensor.float() for tensor in draw(beside)[:4]]
    found = [
        prefix_shared_attention_with_sinks(*(part[: used.tokens] for part in tensors[:3]), tensors[3], used) for used in (alone, beside)
    ]
    assert torch.equal(found[0], found[1][: alone.tokens])


def test_sinks_of_another_number_are_refused():
    layout = LAYOUTS["one token"]
    query, key, value, _, _ = draw(layout)
    with pytest.raises(ValueError, match="sinks"):
        prefix_shared_attention_with_sinks(query, key, value, torch.zeros(3, dtype=torch.float64), layout)

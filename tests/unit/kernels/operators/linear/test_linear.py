"""Linear layers: their product and gradients, and the numbers of rows for which oneDNN prepares code."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gradbus_kernels.operators.linear import api, onednn, product_dtype
from gradbus_kernels.operators.linear.api import linear, linear_reference, padded_rows

ROOM = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float64: 1e-12}
CPU = torch.device("cpu")


def randn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(function, inputs, upstream):
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out.dtype))]


@pytest.mark.parametrize("dtype", ROOM)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(33, 24, 40), (33, 40, 24), (1, 7, 1)])
def test_product_and_gradients_are_those_of_float64(dtype, biased, shape):
    rows, inner, outer = shape
    inputs = [randn(rows, inner), randn(outer, inner, seed=1), randn(outer, seed=2)][: 2 + biased]
    upstream = randn(rows, outer, seed=3)
    found = gradients(linear, [tensor.to(dtype) for tensor in inputs], upstream)
    for one, other in zip(found, gradients(linear_reference, inputs, upstream), strict=True):
        assert one.dtype == dtype
        assert float((one.double() - other).abs().max()) <= ROOM[dtype] * (1.0 + float(other.abs().max()))


@pytest.mark.parametrize("biased", [True, False])
def test_bfloat16_without_instructions_is_multiplied_in_float32(monkeypatch, biased):
    """Rounded once, as instructions do; what is kept for the gradients is as narrow as the inputs."""
    monkeypatch.setattr(product_dtype, "_has_bfloat16", lambda: False)
    inputs = [randn(5, 3, 24), randn(16, 24, seed=1), randn(16, seed=2)][: 2 + biased]
    inputs, upstream, kept = [tensor.bfloat16() for tensor in inputs], randn(5, 3, 16, seed=3).bfloat16(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.dtype) or tensor, lambda tensor: tensor):
        found = gradients(linear, inputs, upstream)
    x, weight, grad = (tensor.double().flatten(0, -2) for tensor in (inputs[0], inputs[1], upstream))
    out = x @ weight.t() + (inputs[2].double() if biased else 0.0)
    exact = [out, grad @ weight, grad.t() @ x, grad.sum(0)][: 3 + biased]
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.flatten(0, -2) if one.dim() > 2 else one, other.bfloat16(), rtol=2**-7, atol=1e-6)
    assert set(kept) == {torch.bfloat16}


def test_a_product_is_that_of_the_widened_factors(monkeypatch):
    left, right = randn(33, 40).bfloat16(), randn(40, 24, seed=1).bfloat16()
    monkeypatch.setattr(product_dtype, "_has_bfloat16", lambda: False)
    assert torch.equal(product_dtype.product(left, right), (left.float() @ right.float()).bfloat16())
    assert product_dtype.product_dtype(torch.bfloat16, torch.device("meta")) == torch.bfloat16
    assert product_dtype.product_dtype(torch.float64, CPU) == torch.float64
    monkeypatch.setattr(product_dtype, "_has_bfloat16", lambda: True)
    assert torch.equal(product_dtype.product(left, right), left @ right)


@pytest.mark.parametrize("shape", [(0, 6), (6,), (2, 0, 6), (2, 3, 6)])
def test_inputs_of_any_dimensions_and_no_rows(shape):
    inputs, upstream = [randn(*shape).float(), randn(4, 6, seed=1).float(), randn(4, seed=2).float()], randn(*shape[:-1], 4, seed=3)
    for one, other in zip(gradients(linear, inputs, upstream), gradients(linear_reference, inputs, upstream), strict=True):
        torch.testing.assert_close(one, other)


def test_strided_inputs_and_upstreams_are_read_as_they_lie():
    x, weight, upstream = randn(12, 20).float().t(), randn(8, 24, seed=1).float()[:, ::2], randn(8, 20, seed=2).float().t()
    for one, other in zip(gradients(linear, [x, weight], upstream), gradients(linear_reference, [x, weight], upstream), strict=True):
        torch.testing.assert_close(one, other)


def test_a_frozen_weight_gets_no_gradient_and_costs_no_product(monkeypatch):
    products = []
    product = api.times_transposed
    monkeypatch.setattr(api, "times_transposed", lambda *args: products.append(args) or product(*args))
    monkeypatch.setattr(api, "by_onednn", lambda *_: True)
    x, weight = randn(5, 6).float().requires_grad_(), randn(4, 6).float()
    linear(x, weight).sum().backward()
    assert weight.grad is None
    assert len(products) == 2


def test_layers_computed_again_give_the_same_bits():
    inputs, upstream = [randn(9, 6).float(), randn(4, 6, seed=1).float()], randn(9, 4, seed=2)
    again = gradients(lambda *parts: checkpoint(linear, *parts, use_reentrant=False), inputs, upstream)
    assert all(torch.equal(one, other) for one, other in zip(gradients(linear, inputs, upstream), again, strict=True))


def test_few_numbers_of_rows_are_prepared(monkeypatch):
    monkeypatch.setattr(onednn, "_has_avx512", lambda: True)
    found = {rows: padded_rows(rows, torch.float32, CPU) for rows in range(1, 8193)}
    assert all(rows <= padded <= rows + max(15, rows // 32) for rows, padded in found.items())
    assert len({padded for padded in found.values() if 4096 < padded <= 8192}) == 32
    assert padded_rows(77, torch.bfloat16, CPU) == padded_rows(77, torch.float32, torch.device("meta")) == 77


@pytest.mark.parametrize(
    ("x", "weight", "bias", "words"),
    [
        (torch.ones(2, 3), torch.ones(4, 2), None, r"x: has shape \(2, 3\); pass \(2, 2\)"),
        (torch.ones(2, 3), torch.ones(4, 3).double(), None, "weight: is torch.float64; pass torch.float32 like x"),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(3), r"bias: has shape \(3,\); pass \(4\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(x, weight, bias, words):
    with pytest.raises(ValueError, match=words):
        linear(x, weight, bias)

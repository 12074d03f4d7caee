"""Products of the rows of groups with the groups' weights: all in one launch, one by one, and by definition in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradbus_kernels.models.mixture import grouped_products
from gradbus_kernels.models.mixture.grouped_products import GroupSizes, fits_one_launch, grouped

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)


def passed(sizes, dtype, out=16, inner=24):
    """Products and gradients of rows and weights."""
    draw = torch.Generator().manual_seed(sum(sizes))
    rows = torch.randn(sum(sizes), inner, generator=draw).to(dtype).requires_grad_()
    weights = [torch.randn(out, inner, generator=draw).to(dtype).requires_grad_() for _ in sizes]
    products = grouped(rows, GroupSizes(torch.tensor(sizes)), weights)
    upstream = torch.randn(products.shape, generator=draw).to(dtype)
    return [products.detach(), *torch.autograd.grad(products, [rows, *weights], upstream)]


def by_definition(sizes, out=16, inner=24):
    """The same in float64, by autograd."""
    draw = torch.Generator().manual_seed(sum(sizes))
    rows = torch.randn(sum(sizes), inner, generator=draw).bfloat16().double().requires_grad_()
    weights = [torch.randn(out, inner, generator=draw).bfloat16().double().requires_grad_() for _ in sizes]
    products = torch.cat([part @ weight.t() for part, weight in zip(rows.split(sizes), weights, strict=True)])
    upstream = torch.randn(products.shape, generator=draw).bfloat16().double()
    return [products.detach(), *torch.autograd.grad(products, [rows, *weights], upstream)]


@pytest.fixture
def in_one_launch(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(grouped_products, "fits_one_launch", lambda rows, weight: True)


@settings(max_examples=25, deadline=None)
@given(SIZES)
def test_products_one_by_one_are_those_of_the_definition(sizes):
    for found, exact in zip(passed(sizes, torch.bfloat16), by_definition(sizes), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-5)


@pytest.mark.parametrize("sizes", [[5], [3, 0, 4], [0, 0, 7, 1], [8, 16, 0]])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_launch_computes_what_single_products_do(sizes, dtype, in_one_launch, monkeypatch):
    together = passed(sizes, dtype)
    monkeypatch.setattr(grouped_products, "fits_one_launch", lambda rows, weight: False)
    for found, wanted in zip(together, passed(sizes, dtype), strict=True):
        assert found.dtype == wanted.dtype == dtype
        torch.testing.assert_close(found, wanted)


def test_a_weight_without_rows_has_zeros_for_its_gradient(in_one_launch):
    *_, second, third = passed([6, 0, 2], torch.bfloat16)
    assert not second.any()
    assert third.any()


def test_weights_that_need_no_gradient_have_none(in_one_launch):
    rows = torch.randn(4, 24, requires_grad=True)
    grouped(rows, GroupSizes(torch.tensor([3, 1])), [torch.randn(16, 24), torch.randn(16, 24)]).sum().backward()
    assert rows.grad is not None


def test_a_cpu_and_float32_take_single_products():
    assert not fits_one_launch(torch.zeros(2, 24, dtype=torch.bfloat16), torch.zeros(16, 24))

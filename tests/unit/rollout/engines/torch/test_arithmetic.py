"""The engine's products: small ones are torch's, large ones oneDNN's; the result is the same up to rounding."""

import pytest
import torch

from gradbus_kernels.operators.linear.onednn import is_product_for_onednn
from gradbus_rollout.engines.torch import arithmetic
from gradbus_rollout.engines.torch.arithmetic import Fast

ROWS, WIDTH, COLUMNS = 6, 8, 10


def randn(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("least", [0, 1 << 20])
@pytest.mark.parametrize("addend", ["none", "vector", "matrix"])
@pytest.mark.parametrize("into", ["new", "other", "addend"])
def test_products_are_added_to_what_is_given_and_written_where_it_is_said(monkeypatch, least, addend, into):
    monkeypatch.setattr(arithmetic, "_LEAST_ONEDNN", least)
    x, weight = randn(ROWS, WIDTH), randn(WIDTH, COLUMNS)
    added = {"none": None, "vector": randn(COLUMNS), "matrix": randn(ROWS, COLUMNS)}[addend]
    if into == "addend" and addend != "matrix":
        pytest.skip("it has another shape")
    expected = x.double() @ weight.double() + (0.0 if added is None else added.double())
    out = {"new": None, "other": torch.full((ROWS, COLUMNS), torch.nan), "addend": added}[into]
    found = Fast().multiply(x, weight, added, out)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert out is None or found is out


@pytest.mark.parametrize("least", [0, 1 << 20])
def test_a_product_that_may_lie_anywhere_takes_the_room_unless_onednn_made_it(monkeypatch, least):
    monkeypatch.setattr(arithmetic, "_LEAST_ONEDNN", least)
    x, weight, room = randn(ROWS, WIDTH), randn(WIDTH, COLUMNS), torch.full((ROWS, COLUMNS), torch.nan)
    found = Fast().multiply_anywhere(x, weight, room)
    torch.testing.assert_close(found.double(), x.double() @ weight.double(), rtol=1e-5, atol=1e-5)
    assert found is room or is_product_for_onednn(x, weight, least)

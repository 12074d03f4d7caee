"""The engine's products: small ones are torch's, large ones oneDNN's; the result is the same up to rounding."""

import pytest
import torch

from gradbus_kernels.operators.linear import product_dtype
from gradbus_kernels.operators.linear.onednn import is_product_for_onednn
from gradbus_rollout.engines.torch import arithmetic
from gradbus_rollout.engines.torch.arithmetic import BatchInvariant, Fast, Widened, arithmetic_for

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


@pytest.mark.parametrize("addend", ["none", "vector", "addend"])
def test_narrow_weights_are_multiplied_in_float32_and_rounded_once(addend):
    x, weight, room = randn(ROWS, WIDTH).bfloat16(), randn(WIDTH, COLUMNS).bfloat16(), torch.empty(ROWS, COLUMNS).bfloat16()
    added = {"none": None, "vector": randn(COLUMNS), "addend": randn(ROWS, COLUMNS)}[addend]
    given = None if added is None else added.bfloat16()
    exact = (x.float() @ weight.float() + (0.0 if given is None else given.float())).bfloat16()
    out = given if addend == "addend" else None
    found = Widened().multiply(x, weight, given, out)
    torch.testing.assert_close(found, exact, rtol=2**-7, atol=0.0)
    assert out is None or found is out
    assert Widened().multiply_anywhere(x, weight, room) is room


def test_attention_over_narrow_pages_is_that_of_float32():
    queries, biases = randn(4, 2, 8).bfloat16(), [torch.zeros(4, 2, 5), torch.zeros(4, 2, 3)]
    pages = [(randn(4, 8, 5).bfloat16(), randn(4, 5, 8).bfloat16()), (randn(4, 8, 3).bfloat16(), randn(4, 3, 8).bfloat16())]
    found = Widened().attend(queries, pages, biases, 0.5)
    wide = [(keys.float(), values.float()) for keys, values in pages]
    assert torch.equal(found, Fast().attend(queries.float(), wide, biases, 0.5).bfloat16())


@pytest.mark.parametrize("native", [True, False])
def test_what_a_cpu_has_instructions_for_chooses_the_arithmetic(monkeypatch, native):
    monkeypatch.setattr(product_dtype, "_has_bfloat16", lambda: native)
    cpu = torch.device("cpu")
    assert type(arithmetic_for("fast", torch.bfloat16, cpu)) is (Fast if native else Widened)
    assert type(arithmetic_for("fast", torch.float32, cpu)) is Fast
    assert type(arithmetic_for("batch_invariant", torch.bfloat16, cpu)) is BatchInvariant

"""The bits of a row of a product depend neither on the other rows nor on their number."""

import pytest
import torch

from gradbus_kernels.operators import using
from gradbus_kernels.operators.batch_invariant import matmul
from gradbus_kernels.operators.batch_invariant.matmul import invariant_matmul, invariant_matmul_reference, multiply_blocks

COUNTS = (1, 2, 3, 7, 31, 32, 33, 64, 65, 127, 200, 300)


def made(rows, inner, columns, dtype=torch.float32, transposed=False):
    draw = torch.Generator().manual_seed(rows * inner + columns)
    x, weight, addend = (torch.randn(*size, generator=draw).to(dtype) for size in ((rows, inner), (inner, columns), (rows, columns)))
    return x, weight.t().contiguous().t() if transposed else weight, addend


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("inner", "columns"), [(5, 7), (9, 4), (8, 10), (37, 50), (48, 29), (96, 64), (512, 40), (900, 130)])
def test_a_rows_bits_do_not_depend_on_the_number_of_rows_or_its_index(inner, columns, transposed, dtype):
    x, weight, addend = made(300, inner, columns, dtype, transposed)
    whole = invariant_matmul(x, weight, addend)
    for count in COUNTS:
        assert torch.equal(invariant_matmul(x[:count], weight, addend[:count]), whole[:count])
        assert torch.equal(invariant_matmul(x[-count:], weight, addend[-count:]), whole[-count:])
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert torch.equal(invariant_matmul(x[order], weight, addend[order]), whole[order])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("added", ["nothing", "a bias", "a residual"])
def test_a_shape_whose_rows_depend_on_their_index_is_padded(monkeypatch, added, transposed):
    refuse(monkeypatch, lambda shape: shape.inner % 16 or shape.columns % 16)
    x, weight, addend = made(70, 37, 50, transposed=transposed)
    given = {"nothing": None, "a bias": addend[0], "a residual": addend}[added]
    whole = multiply_blocks(x, weight, given)
    torch.testing.assert_close(whole, x @ weight + (0.0 if given is None else given))
    assert torch.equal(multiply_blocks(x[41:44], weight, given[41:44] if added == "a residual" else given), whole[41:44])


def test_the_padded_product_goes_into_the_addend(monkeypatch):
    refuse(monkeypatch, lambda shape: shape.inner % 16 or shape.columns % 16)
    x, weight, addend = made(40, 37, 50)
    expected = multiply_blocks(x, weight, addend)
    assert multiply_blocks(x, weight, addend, addend) is addend
    assert torch.equal(addend, expected)


def test_a_machine_on_which_no_shape_keeps_its_bits_is_refused(monkeypatch):
    refuse(monkeypatch, lambda shape: True)
    x, weight, _ = made(40, 37, 50)
    with pytest.raises(RuntimeError, match=r"shape \(48, 64\) depend on their index in a block; run with numerics = 'fast'"):
        multiply_blocks(x, weight)


def refuse(monkeypatch, depends):
    """This machine's BLAS sums a row in an order that depends on its index, in the shapes for which `depends` is true."""
    agrees = matmul.agrees
    monkeypatch.setattr(matmul, "agrees", lambda rows, shape: not depends(shape) and agrees(rows, shape))
    monkeypatch.setattr(matmul, "_plan", matmul._plan.__wrapped__)


def test_other_rows_may_hold_anything():
    x, weight, _ = made(40, 64, 33)
    other = x.clone()
    other[1::2] = torch.tensor([1e30, float("inf"), float("nan"), 0.0] * 5)[:, None]
    assert torch.equal(invariant_matmul(other, weight)[::2], invariant_matmul(x, weight)[::2])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_blocks_that_are_taken_have_the_bits_of_the_definition(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight, addend = made(75, 640, 48)
        for given in (None, addend, addend[0]):
            assert torch.equal(multiply_blocks(x, weight, given), invariant_matmul_reference(x, weight, given))
    finally:
        torch.set_num_threads(before)


def test_a_plain_product_does_depend_on_the_number_of_rows():
    """Else nothing of this would be needed here, and the tests above would prove little."""
    x, weight, _ = made(300, 900, 130, transposed=True)
    assert not all(torch.equal(x[:count] @ weight, (x @ weight)[:count]) for count in COUNTS)


def test_bits_do_not_depend_on_where_the_rows_lie_in_memory():
    x, weight, _ = made(33, 50, 37)
    aligned = invariant_matmul(x, weight)
    assert torch.equal(invariant_matmul(torch.cat((x[:1, :3].flatten(), x.flatten()))[3:].view(33, 50), weight), aligned)
    assert torch.equal(invariant_matmul(torch.cat((x, x), 1)[:, :50], weight), aligned)


@pytest.mark.parametrize("added", ["nothing", "a bias", "a residual"])
def test_value_and_gradients_are_the_products(implementation, added, dtype):
    x, weight, addend = made(21, 37, 18, dtype, transposed=True)
    given = {"nothing": None, "a bias": addend[0], "a residual": addend}[added]
    inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, given) if tensor is not None]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    out, expected = invariant_matmul(*inputs), wide[0] @ wide[1] + (wide[2] if given is not None else 0.0)
    (out.float() * addend.float()).sum().backward()
    (expected * addend.double()).sum().backward()
    room = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(out.double(), expected, atol=20 * room, rtol=room)
    for found, right in zip(inputs, wide, strict=True):
        torch.testing.assert_close(found.grad.double(), right.grad, atol=20 * room, rtol=room)


def test_triton_rows_do_not_depend_on_the_others_either(dtype):
    pytest.importorskip("triton")
    x, weight, addend = made(70, 45, 30, dtype)
    with using("triton"):
        whole = invariant_matmul(x, weight, addend)
        for count in (1, 3, 65):
            assert torch.equal(invariant_matmul(x[:count], weight, addend[:count]), whole[:count])
            assert torch.equal(invariant_matmul(x[-count:], weight, addend[-count:]), whole[-count:])


def test_no_rows_give_none(implementation):
    x, weight, _ = made(1, 5, 6)
    assert invariant_matmul(x[:0], weight).shape == (0, 6)


def test_bad_arguments_are_named():
    x, weight, addend = made(4, 5, 6)
    for arguments, named in [
        ((x, weight[:4]), "weight: has shape"),
        ((x, weight.double()), "weight: is torch.float64; pass torch.float32"),
        ((x, torch.ones(5, 12)[:, ::2]), "weight: is neither contiguous nor a transpose"),
        ((x, weight, addend[:2]), "addend: has shape"),
        ((x[0], weight), "x: has shape"),
        ((x.long(), weight), "x: is torch.int64"),
    ]:
        with pytest.raises(ValueError, match=named):
            invariant_matmul(*arguments)

"""Norm, rotation, SwiGLU and log-probabilities of a row: functions of that row."""

import sys

import pytest
import torch

from gradbus_kernels.operators import using
from gradbus_kernels.operators.batch_invariant import layers
from gradbus_kernels.operators.batch_invariant.logprob import invariant_logprob, invariant_logprob_reference, row_logprobs

COUNTS = (1, 2, 3, 7, 16, 33)
ROOM = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def randn(*size, dtype=torch.float32, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rotated(rows):
    """Queries and keys are the head of wider rows, as beside values."""
    return layers.invariant_rotation(rows[:, :-4], randn(len(rows), rows.shape[1] - 4, seed=9)[: len(rows)])


OPERATIONS = {
    "norm": lambda rows: layers.invariant_rms_norm(rows, randn(rows.shape[1], seed=5), 1e-6),
    "swiglu": layers.invariant_swiglu,
    "log-softmax": lambda rows: row_logprobs(rows, 0.7),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [14, 50, 96, 1254])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_rows_bits_do_not_depend_on_the_others(name, width, threads):
    rows, before = randn(60, width) * 3, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = OPERATIONS[name](rows)
        for count in COUNTS:
            assert torch.equal(OPERATIONS[name](rows[:count]), whole[:count])
            assert torch.equal(OPERATIONS[name](rows[-count:].clone()), whole[-count:])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("width", [14, 50, 96])
def test_a_rotated_rows_bits_do_not_depend_on_the_others(width):
    rows, turn = randn(60, width + 4), randn(60, width, seed=9)
    whole = layers.invariant_rotation(rows[:, :width], turn)
    for count in COUNTS:
        assert torch.equal(layers.invariant_rotation(rows[-count:].clone()[:, :width], turn[-count:]), whole[-count:])


def test_value_and_gradients_of_the_norm(implementation, dtype):
    compare(
        lambda x, weight: layers.invariant_rms_norm(x, weight, 1e-5),
        lambda x, weight: weight * x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt(),
        [randn(9, 37, dtype=dtype), randn(37, dtype=dtype, seed=1)],
    )


def test_value_and_gradients_of_swiglu(dtype):
    compare(layers.invariant_swiglu, layers.invariant_swiglu_reference, [randn(9, 22, dtype=dtype)])


def test_value_and_gradients_of_the_rotation():
    turn = randn(9, 12, seed=4)
    compare(
        lambda x: layers.invariant_rotation(x[:, :12], turn),
        lambda x: layers.invariant_rotation_reference(x[:, :12], turn.double()),
        [randn(9, 16)],
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_value_and_gradients_of_log_probabilities(implementation, dtype, temperature):
    ids = torch.tensor([0, 28, 5, 5, 17])
    for which in (0, 1):
        compare(
            lambda hidden, weight, which=which: invariant_logprob(hidden, weight, ids, temperature)[which],
            lambda hidden, weight, which=which: invariant_logprob_reference(hidden, weight, ids, temperature)[which].double(),
            [randn(5, 12, dtype=dtype), randn(29, 12, dtype=dtype, seed=2)],
            20.0,
        )


def test_log_probabilities_do_not_depend_on_the_chunk(monkeypatch):
    hidden, weight, ids = randn(150, 40), randn(29, 40, seed=2), torch.arange(150) % 29
    whole, _ = invariant_logprob(hidden, weight, ids)
    monkeypatch.setattr(sys.modules[invariant_logprob.__module__], "_LOGITS", 29 * 64)
    assert torch.equal(invariant_logprob(hidden, weight, ids)[0], whole)
    assert torch.equal(invariant_logprob(hidden[77:80], weight, ids[77:80])[0], whole[77:80])


def test_triton_rows_do_not_depend_on_the_others_either():
    pytest.importorskip("triton")
    rows, weight = randn(9, 1100), randn(1100, seed=1)
    with using("triton"):
        for operation in (lambda rows: layers.invariant_rms_norm(rows, weight, 1e-6), lambda rows: row_logprobs(rows, 0.7)):
            assert torch.equal(operation(rows[4:5].clone()), operation(rows)[4:5])


def test_no_rows_give_none():
    rows = randn(0, 9).requires_grad_()
    assert layers.invariant_rms_norm(rows, randn(9), 1e-6).shape == (0, 9)
    assert layers.invariant_swiglu(randn(0, 6)).shape == (0, 3)
    turned = layers.invariant_rotation(rows[:, :6], randn(0, 6))
    turned.sum().backward()
    assert (turned.shape, rows.grad.shape) == ((0, 6), (0, 9))
    assert [part.shape for part in invariant_logprob(rows, randn(7, 9), torch.empty(0, dtype=torch.int64))] == [(0,), (0,)]


def test_bad_arguments_are_named():
    for call, named in [
        (lambda: layers.invariant_rms_norm(randn(2, 5), randn(4), 1e-6), "weight: has shape"),
        (lambda: layers.invariant_rms_norm(randn(2, 5), randn(5), -1.0), "eps: is -1.0"),
        (lambda: layers.invariant_swiglu(randn(2, 5)), "gate_up: has 5 columns"),
        (lambda: layers.invariant_rotation(randn(2, 6), randn(2, 6)), "pairs: stands alone"),
        (lambda: layers.invariant_rotation(randn(2, 9)[:, :6].double(), randn(2, 6)), "pairs: is not float32"),
        (lambda: layers.invariant_rms_norm(randn(2, 5), randn(5).bfloat16(), 1e-6), "weight: is torch.bfloat16; pass torch.float32 like x"),
        (lambda: layers.invariant_rms_norm(randn(2, 5).int(), randn(5), 1e-6), "x: is torch.int32"),
        (lambda: layers.invariant_swiglu(randn(2, 6).int()), "gate_up: is torch.int32"),
        (lambda: layers.invariant_rotation(randn(2, 9)[:, :6], randn(2, 6).double()), "turn: is torch.float64"),
        (lambda: layers.invariant_rotation(randn(2, 9)[:, :6], randn(2, 6).to("meta")), "turn: is on meta"),
        (lambda: invariant_logprob(randn(2, 5) * torch.nan, randn(7, 5), torch.tensor([0, 1])), "hidden · weightᵀ: row 0 holds NaN"),
        (lambda: invariant_logprob(randn(2, 5), randn(7, 5).double(), torch.tensor([0, 1])), "weight: is torch.float64"),
        (lambda: invariant_logprob(randn(2, 5), randn(7, 5), torch.tensor([0, 7])), "ids: holds 7; pass ids in"),
        (lambda: invariant_logprob(randn(2, 5), randn(7, 5), torch.tensor([0, 1]), 0.0), "temperature: is 0.0"),
    ]:
        with pytest.raises(ValueError, match=named):
            call()


def compare(operation, reference, tensors, factor=1.0):
    """Value and gradients within rounding of float64's."""
    inputs = [tensor.clone().requires_grad_() for tensor in tensors]
    wide = [tensor.double().requires_grad_() for tensor in tensors]
    out, expected = operation(*inputs), reference(*wide)
    pull = randn(*out.shape, seed=8)
    (out.float() * pull).sum().backward()
    (expected * pull.double()).sum().backward()
    room = factor * ROOM[tensors[0].dtype]
    torch.testing.assert_close(out.double(), expected, atol=room, rtol=room)
    for found, right in zip(inputs, wide, strict=True):
        torch.testing.assert_close(found.grad.double(), right.grad, atol=10 * room, rtol=10 * room)

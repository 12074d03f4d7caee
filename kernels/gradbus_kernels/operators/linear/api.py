"""`x · weightᵀ + bias` and its gradients.

On a CPU float32 is multiplied by oneDNN if there is AVX-512, and what the CPU has no instructions for in float32.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats
from gradbus_kernels.operators.linear.onednn import by_onednn, times_transposed
from gradbus_kernels.operators.linear.product_dtype import product_dtype

_STEPS: Final = 32
"""Numbers of rows between two powers of two."""
_LEAST_STEP: Final = 16
"""Rows; the width of a vector."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`: x float `[..., I]`, weight `[O, I]`, bias `[O]`, one dtype; `[..., O]`. Differentiable once.

    Raises ValueError, which names the argument, for arguments that do not fit.
    """
    _check(x, weight, bias)
    if not x.numel() or not (by_onednn(x.dtype, x.device) or product_dtype(x.dtype, x.device) != x.dtype):
        return functional.linear(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same by its definition."""
    product = torch.einsum("...i,oi->...o", x, weight)
    return product if bias is None else product + bias


def padded_rows(rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """Rows that a batch of `rows` should have: a few more where each number of rows costs a preparation, else the same.

    A function of the number of rows alone: of 512 rows or more it adds at most a 32nd, and never more than 15 to fewer.
    """
    if not by_onednn(dtype, device):
        return rows
    step = max(_LEAST_STEP, (1 << max(0, rows.bit_length() - 1)) // _STEPS)
    return -(-rows // step) * step


def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    check_floats("weight", weight, (None, None), x)
    check_floats("x", x, (*x.shape[:-1], weight.shape[1]))
    check_dtype("weight", weight, "x", x)
    if bias is not None:
        check_floats("bias", bias, (len(weight),), x)
        check_dtype("bias", bias, "x", x)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        grad = grad.contiguous()
        rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        return (
            _product(grad, weight.t()) if of_x else None,
            _of_weight(rows, inputs) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _of_weight(grad: Tensor, x: Tensor) -> Tensor:
    """`gradᵀ · x`; the narrower of the two is copied, because only the right factor may be a transposed view."""
    if grad.shape[1] <= x.shape[1]:
        return _product(grad.t(), x.t())
    return _product(x.t(), grad.t()).t()


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """`left · rightᵀ + bias`, added up in float32."""
    if by_onednn(left.dtype, left.device):
        return times_transposed(left, right, bias)
    return functional.linear(left.float(), right.float(), None if bias is None else bias.float()).to(left.dtype)

"""Batch-invariant norm, rotary embedding and SwiGLU: the operations between the products of a decoder layer.

Every function works on rows, and a row's result is a function of that row. On a CPU the last elements of a loop may be computed by
other instructions than the rest; the loops here end with a row, so only an element's column decides its instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require
from gradbus_kernels.operators.base.dispatch import choose

_ONE_THREAD: Final = 32768
"""Elements up to which torch runs a loop in one thread, and so never splits a row."""


def invariant_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`weight · x / sqrt(mean(x²) + eps)` (Zhang and Sennrich 2019) of each row of `[N, H]`, in float32 and cast back; differentiable."""
    check_floats("x", x, (None, None))
    check_floats("weight", weight, (x.shape[1],), x)
    check_dtype("weight", weight, "x", x)
    require(eps >= 0.0, "eps", f"is {eps}; pass 0 or more")
    out: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def invariant_rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same by its definition."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def invariant_rotation(pairs: Tensor, turn: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021), float32: `pairs` `[N, W]`, read as W / 2 complex numbers, times those of `turn` `[N, W]`.

    Differentiable in `pairs`.
    """
    check_floats("pairs", pairs, (None, None))
    require(pairs.dtype == torch.float32 and pairs.shape[1] % 2 == 0, "pairs", "is not float32 of even width; pass it so")
    check_floats("turn", turn, tuple(pairs.shape), pairs)
    check_dtype("turn", turn, "pairs", pairs)
    require(pairs.stride(0) > pairs.shape[1], "pairs", "stands alone; pass a part of wider rows, as queries and keys beside values are")
    out: Tensor = _Rotation.apply(pairs, turn)  # type: ignore[no-untyped-call]
    return out


def invariant_rotation_reference(pairs: Tensor, turn: Tensor) -> Tensor:
    """The same by its definition."""
    real, imaginary, cos, sin = pairs[:, ::2], pairs[:, 1::2], turn[:, ::2], turn[:, 1::2]
    return torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), -1).flatten(1)


def invariant_swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) · up` (Shazeer 2020): `[N, 2 I]`, gates first, to `[N, I]`; differentiable."""
    check_floats("gate_up", gate_up, (None, None))
    require(
        gate_up.shape[1] % 2 == 0 and gate_up.is_contiguous(), "gate_up", f"has {gate_up.shape[1]} columns; pass an even number, contiguous"
    )
    out: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
    return out


def invariant_swiglu_reference(gate_up: Tensor) -> Tensor:
    """The same by its definition."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`invariant_rms_norm` without checks and without a gradient."""
    chosen = choose("invariant_rms_norm", x, ("reference", "cpu", "triton"))
    if chosen == "triton":
        from gradbus_kernels.operators.batch_invariant.triton.rows import rms_norm  # noqa: PLC0415 - only where Triton runs

        return rms_norm(x, weight, eps)
    if chosen == "reference":
        return invariant_rms_norm_reference(x, weight, eps)
    return normed_rows(x, weight, eps)


def normed_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`normed` in torch."""
    unit = x / _size(x, eps)
    return (unit if unit.dtype == x.dtype else unit.to(x.dtype)).mul_(weight)  # a cast to its own dtype takes as long as a product


def turned(pairs: Tensor, turn: Tensor) -> Tensor:
    """`invariant_rotation` without checks and without a gradient."""
    out = pairs.new_empty(pairs.shape)
    for start, end in row_spans(*pairs.shape):
        numbers, factors, into = (complex_pairs(rows[start:end]) for rows in (pairs, turn, out))
        torch.mul(numbers, factors, out=into)
    return out


def gated(gate: Tensor, up: Tensor, activation: Callable[[Tensor], Tensor] = functional.silu) -> Tensor:
    """`invariant_swiglu` of the two halves, or with another `activation`, without checks and without a gradient."""
    spans = row_spans(*gate.shape)
    if len(spans) == 1:
        return activation(gate).mul_(up)
    return torch.cat([activation(gate[start:end]) for start, end in spans]).mul_(up)


def complex_pairs(pairs: Tensor) -> Tensor:
    """`[N, W]` seen as complex numbers `[N, W / 2]`."""
    return torch.view_as_complex(pairs.view(len(pairs), pairs.shape[1] // 2, 2))


def row_spans(rows: int, width: int) -> Sequence[tuple[int, int]]:
    """(start, end) of the loops over `[rows, width]`: one loop, unless torch would split it among threads in the middle of a row."""
    if torch.get_num_threads() == 1 or rows * width <= _ONE_THREAD:
        return ((0, rows),)
    step = max(1, _ONE_THREAD // width)
    return [(start, min(rows, start + step)) for start in range(0, rows, step)]


def _size(x: Tensor, eps: float) -> Tensor:
    """`sqrt(mean(x²) + eps)` of each row, float32 `[N, 1]`; computed as a hypotenuse, which halves the operations."""
    norm: Tensor = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
    scale, least = _scalars(x.shape[-1], eps, x.device)
    return norm.mul_(scale).hypot_(least)


@cache
def _scalars(width: int, eps: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """`1 / sqrt(width)` and `sqrt(eps)` as tensors, because torch would convert numbers at each use."""
    return torch.tensor(width**-0.5, device=device), torch.tensor(eps**0.5, device=device)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return normed(x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """With r the root and u = x / r: dx = (g w - u mean(g w u)) / r and dw = the sum of g u over rows."""
        x, weight = ctx.saved_tensors
        root = _size(x, ctx.eps)
        unit = x / root
        inner = grad * weight
        grad_x = (inner - unit * (inner * unit).mean(-1, keepdim=True)) / root
        return grad_x.to(x.dtype), (grad * unit).sum(0).to(weight.dtype), None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pairs: Tensor, turn: Tensor) -> Tensor:
        ctx.save_for_backward(turn)
        return turned(pairs, turn)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (turn,) = ctx.saved_tensors
        return torch.view_as_real(complex_pairs(grad.contiguous()) * complex_pairs(turn).conj()).flatten(1), None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return gated(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        slope = torch.ops.aten.silu_backward(grad * up, gate)
        return torch.cat((slope, functional.silu(gate) * grad), dim=-1)

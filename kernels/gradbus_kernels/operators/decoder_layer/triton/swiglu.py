"""Triton kernels of `swiglu`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.block_sizes import SWIGLU as LAUNCH


def swiglu(gate_up: Tensor) -> Tensor:
    """See `swiglu` above."""
    out: Tensor = _SwiGLU.apply(gate_up)
    return out


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        width = gate_up.shape[-1] // 2
        out = gate_up.new_empty(*gate_up.shape[:-1], width)
        if out.numel():
            _swiglu_forward[_grid(out)](gate_up, out, width, BLOCK=LAUNCH.columns, num_warps=LAUNCH.warps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        out, upstream = torch.empty_like(gate_up), upstream.contiguous()
        if out.numel():
            _swiglu_backward[_grid(upstream)](gate_up, upstream, out, upstream.shape[-1], BLOCK=LAUNCH.columns, num_warps=LAUNCH.warps)
        return out


def _grid(out: Tensor) -> tuple[int]:
    """One program a block of columns of a row; the blocks of a row are neighbours."""
    width = out.shape[-1]
    return (out.numel() // width * triton.cdiv(width, LAUNCH.columns),)


@triton.jit
def _place(width, BLOCK: tl.constexpr):
    """The row of this program, and its columns."""
    blocks = tl.cdiv(width, BLOCK)
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _swiglu_forward(gate_up, out, width, BLOCK: tl.constexpr):
    row, columns = _place(width, BLOCK)
    inside, at = columns < width, gate_up + row * 2 * width
    gate = tl.load(at + columns, inside, 0.0).to(tl.float32)
    up = tl.load(at + width + columns, inside, 0.0).to(tl.float32)
    # Rounded, as torch's silu is, before the product.
    silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (silu * up).to(out.dtype.element_ty), inside)


@triton.jit
def _swiglu_backward(gate_up, upstream, out, width, BLOCK: tl.constexpr):
    """With s = sigmoid(gate): the gradient of up is silu(gate) u, and that of gate is u · up · s (1 + gate (1 - s))."""
    row, columns = _place(width, BLOCK)
    inside, at, to = columns < width, gate_up + row * 2 * width, out + row * 2 * width
    gate = tl.load(at + columns, inside, 0.0).to(tl.float32)
    up = tl.load(at + width + columns, inside, 0.0).to(tl.float32)
    above = tl.load(upstream + row * width + columns, inside, 0.0).to(tl.float32)
    narrow = out.dtype.element_ty
    share = 1.0 / (1.0 + tl.exp(-gate))
    tl.store(to + width + columns, ((gate * share).to(narrow).to(tl.float32) * above).to(narrow), inside)
    pull = (above * up).to(narrow).to(tl.float32)
    tl.store(to + columns, (pull * share * (1.0 + gate * (1.0 - share))).to(narrow), inside)

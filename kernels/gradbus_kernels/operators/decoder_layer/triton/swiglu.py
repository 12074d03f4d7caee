"""Triton kernels of `swiglu` and `geglu`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.block_sizes import GATED as LAUNCH


def gated(gate_up: Tensor, gelu: bool) -> Tensor:
    """See `swiglu` above, and `geglu` for `gelu`."""
    out: Tensor = _Gated.apply(gate_up, gelu)
    return out


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, gelu: bool) -> Tensor:
        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        ctx.gelu = gelu
        width = gate_up.shape[-1] // 2
        out = gate_up.new_empty(*gate_up.shape[:-1], width)
        if out.numel():
            _gated_forward[_grid(out)](gate_up, out, width, GELU=gelu, BLOCK=LAUNCH.columns, num_warps=LAUNCH.warps)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        out, upstream = torch.empty_like(gate_up), upstream.contiguous()
        if out.numel():
            how = {"GELU": ctx.gelu, "BLOCK": LAUNCH.columns, "num_warps": LAUNCH.warps}
            _gated_backward[_grid(upstream)](gate_up, upstream, out, upstream.shape[-1], **how)
        return out, None


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
def _activated(gate, GELU: tl.constexpr):
    """The activation of float32 `gate`, and its derivative."""
    share = 1.0 / (1.0 + tl.exp(-gate))
    steepness = 1.0
    if GELU:  # (1 + tanh(x)) / 2 is sigmoid(2 x), which keeps small values exact
        square = gate * gate
        share = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * gate * (1.0 + 0.044715 * square)))
        steepness = 1.5957691216057308 * (1.0 + 0.134145 * square)
    return gate * share, share * (1.0 + gate * (1.0 - share) * steepness)


@triton.jit
def _gated_forward(gate_up, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row, columns = _place(width, BLOCK)
    inside, at = columns < width, gate_up + row * 2 * width
    value, _ = _activated(tl.load(at + columns, inside, 0.0).to(tl.float32), GELU)
    up = tl.load(at + width + columns, inside, 0.0).to(tl.float32)
    # Rounded, as torch's activation is, before the product.
    rounded = value.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + columns, (rounded * up).to(out.dtype.element_ty), inside)


@triton.jit
def _gated_backward(gate_up, upstream, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """With u the gradient of the output: that of up is the activation times u, and that of gate u · up times its derivative."""
    row, columns = _place(width, BLOCK)
    inside, at, to = columns < width, gate_up + row * 2 * width, out + row * 2 * width
    value, slope = _activated(tl.load(at + columns, inside, 0.0).to(tl.float32), GELU)
    up = tl.load(at + width + columns, inside, 0.0).to(tl.float32)
    above = tl.load(upstream + row * width + columns, inside, 0.0).to(tl.float32)
    narrow = out.dtype.element_ty
    tl.store(to + width + columns, (value.to(narrow).to(tl.float32) * above).to(narrow), inside)
    tl.store(to + columns, ((above * up).to(narrow).to(tl.float32) * slope).to(narrow), inside)

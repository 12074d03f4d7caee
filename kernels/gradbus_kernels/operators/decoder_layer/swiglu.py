"""SwiGLU and GeGLU (Shazeer 2020) of gates and ups that one product made; on a GPU, and SwiGLU, keep nothing else for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus_kernels.operators.base.arguments import check_floats, require
from gradbus_kernels.operators.base.dispatch import choose


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up`, `[..., I]`, of gates and ups side by side, float `[..., 2I]`. Differentiable once.

    Raises ValueError, which names the argument.
    """
    _check(gate_up)
    chosen = choose("swiglu", gate_up, ("reference", "cpu", "triton"))
    if chosen == "reference":
        return swiglu_reference(gate_up)
    if chosen == "triton":
        from gradbus_kernels.operators.decoder_layer.triton import swiglu as on_gpu  # noqa: PLC0415 - needs Triton

        return on_gpu.gated(gate_up, gelu=False)
    out: Tensor = _SwiGLU.apply(gate_up)  # type: ignore[no-untyped-call]
    return out


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """The same by its definition."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * gate.sigmoid() * up


def geglu(gate_up: Tensor) -> Tensor:
    """`gelu(gate) * up` with the tanh approximation; otherwise as `swiglu`."""
    _check(gate_up)
    if choose("geglu", gate_up, ("reference", "cpu", "triton")) == "triton":
        from gradbus_kernels.operators.decoder_layer.triton import swiglu as on_gpu  # noqa: PLC0415 - needs Triton

        return on_gpu.gated(gate_up, gelu=True)
    return geglu_reference(gate_up)


def geglu_reference(gate_up: Tensor) -> Tensor:
    """The same by its definition."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh") * up


def _check(gate_up: Tensor) -> None:
    check_floats("gate_up", gate_up, (*gate_up.shape[:-1], None))
    require(gate_up.shape[-1] % 2 == 0, "gate_up", f"has rows of {gate_up.shape[-1]}; pass as many ups as gates")


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        out: Tensor = functional.silu(gate).mul_(up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out: Tensor = gate_up.new_empty(gate_up.shape)
        of_gate, of_up = out.chunk(2, dim=-1)
        torch.mul(functional.silu(gate), upstream, out=of_up)
        of_gate.copy_(torch.ops.aten.silu_backward(torch.mul(upstream, up), gate))
        return out

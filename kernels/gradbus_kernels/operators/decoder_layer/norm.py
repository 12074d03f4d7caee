"""RMSNorm (Zhang and Sennrich 2019) that keeps its input and one number a row for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require
from gradbus_kernels.operators.base.dispatch import choose


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`weight · x / sqrt(mean(x²) + eps)` of each row of float `[..., H]`; weight `[H]` of the same dtype. Differentiable once.

    Computed in float32 at least; the row is cast back before the weight. Raises ValueError, which names the argument.
    """
    _check(x, weight, eps)
    chosen = choose("rms_norm", x, ("reference", "cpu", "triton"))
    if chosen == "reference":
        return rms_norm_reference(x, weight, eps)
    if chosen == "triton":
        from gradbus_kernels.operators.decoder_layer.triton import norm as on_gpu  # noqa: PLC0415 - needs Triton

        return on_gpu.rms_norm(x, weight, on_gpu.Kind(eps))
    out: Tensor = _RmsNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def rms_norm_in_float32(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """`(offset + weight) · x / sqrt(mean(x²) + eps)`, all of it in float32 and cast back once; otherwise as `rms_norm`."""
    _check(x, weight, eps)
    if choose("rms_norm_in_float32", x, ("reference", "cpu", "triton")) == "triton":
        from gradbus_kernels.operators.decoder_layer.triton import norm as on_gpu  # noqa: PLC0415 - needs Triton

        return on_gpu.rms_norm(x, weight, on_gpu.Kind(eps, offset, rounded=False))
    return rms_norm_in_float32_reference(x, weight, eps, offset)


def rms_norm_in_float32_reference(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """The same by `rms_norm`, of the implementation that is asked for."""
    wide = weight.float()
    return rms_norm(x.float(), offset + wide if offset else wide, eps).to(x.dtype)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same by its definition."""
    wide = x.to(_wide(x.dtype))
    unit: Tensor = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return weight * unit


def _check(x: Tensor, weight: Tensor, eps: float) -> None:
    check_floats("x", x, (*x.shape[:-1], None))
    check_floats("weight", weight, (x.shape[-1],), x)
    check_dtype("weight", weight, "x", x)
    require(eps >= 0.0, "eps", f"is {eps}; pass 0 or more")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        size: Tensor = torch.linalg.vector_norm(x, 2, -1, True, dtype=_wide(x.dtype))
        inverse = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        unit: Tensor = (x * inverse).to(x.dtype)
        return unit.mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """With r the root's inverse: dx = r w g - x r³ mean(w g x), and dw = the sum of r g x over rows."""
        x, weight, inverse = ctx.saved_tensors
        of_x, of_weight, _ = ctx.needs_input_grad
        columns = x.shape[-1]
        rows, wide_grad, flat = x.reshape(-1, columns).to(inverse.dtype), grad.reshape(-1, columns).to(inverse.dtype), inverse.reshape(-1)
        wide_weight = weight.to(inverse.dtype)
        both = rows * wide_grad
        grad_weight = torch.mv(both.t(), flat).to(weight.dtype) if of_weight else None
        if not of_x:
            return None, grad_weight, None
        pull = torch.mv(both, wide_weight).mul_(flat.pow(3)).div_(columns)
        grad_x = torch.mul(wide_grad, wide_weight, out=both).mul_(flat[:, None]).addcmul_(rows, pull[:, None], value=-1.0)
        return grad_x.to(x.dtype).view(x.shape), grad_weight, None

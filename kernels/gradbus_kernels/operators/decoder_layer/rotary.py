"""Rotary position embedding (Su et al. 2021) of heads whose pairs are the elements i and i + D / 2, Hugging Face's layout."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require


class Rotation(NamedTuple):
    """Turns of N positions, repeated for each of H heads: an operation on whole rows takes a third of the time of one on each head."""

    cos: Tensor
    """`[N, H, D]`, contiguous: the cosines of the D / 2 pairs, twice."""
    sin: Tensor
    """`[N, H, D]`, contiguous: the sines negated, then the sines."""

    @classmethod
    def of_angles(cls, angles: Tensor, factor: float, heads: int, dtype: torch.dtype) -> Rotation:
        """The turns by `angles`, `[N, D / 2]` in radians, whose cosines and sines are multiplied by `factor` and then cast."""
        cos, sin = (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
        return cls(*(torch.cat(parts, dim=-1)[:, None].repeat(1, heads, 1) for parts in ((cos, cos), (-sin, sin))))


def rotary(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turns the pairs of float `[N, K, D]`, K at most H, by those of their token; contiguous. Differentiable once, in `heads`.

    Raises ValueError, which names the argument.
    """
    check_floats("heads", heads, (None, None, None))
    for name, part in zip(("rotation.cos", "rotation.sin"), rotation, strict=True):
        check_floats(name, part, (len(heads), None, heads.shape[2]), heads)
        check_dtype(name, part, "heads", heads)
        require(part.shape[1] >= heads.shape[1], name, f"is for {part.shape[1]} heads; pass one for {heads.shape[1]} or more")
    out: Tensor = _Rotary.apply(heads, *(part[:, : heads.shape[1]] for part in rotation))  # type: ignore[no-untyped-call]
    return out


def rotary_reference(heads: Tensor, rotation: Rotation) -> Tensor:
    """The same by its definition."""
    (first, second), half = heads.chunk(2, dim=-1), heads.shape[2] // 2
    cos, sin = (part[:, : heads.shape[1]] for part in (rotation.cos[..., :half], rotation.sin[..., half:]))
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    """Each pair (a, b) times (cos, sin): (a cos - b sin, b cos + a sin). Direction -1 turns it back."""
    first, second = heads.chunk(2, dim=-1)
    return torch.mul(heads, cos).add_(torch.cat((second, first), dim=-1).mul_(sin), alpha=direction)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(heads, cos, sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, sin, -1.0), None, None

"""Rotary position embedding (Su et al. 2021) of heads whose pairs are the elements i and i + D / 2, Hugging Face's layout."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.arguments import check_dtype, check_floats, require
from gradbus_kernels.operators.base.dispatch import choose


class Rotation(NamedTuple):
    """Turns of N positions; one for each of R heads, or R = 1."""

    cos: Tensor
    """`[N, R, D]`: the cosines of the D / 2 pairs, twice."""
    sin: Tensor
    """`[N, R, D]`: the sines negated, then the sines."""

    @classmethod
    def of_angles(cls, angles: Tensor, factor: float | Tensor, heads: int, dtype: torch.dtype) -> Rotation:
        """The turns by `angles`, `[N, D / 2]` in radians, whose cosines and sines are multiplied by `factor` and then cast.

        `factor` is a number, `[D / 2]` or `[N, 1]`. On a CPU they are repeated for each of `heads`: an operation on whole rows takes a
        third of the time of one on each head.
        """
        factor = factor.to(angles.device) if isinstance(factor, Tensor) else factor
        cos, sin = (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
        repeats = heads if angles.device.type == "cpu" else 1
        return cls(*(torch.cat(parts, dim=-1)[:, None].repeat(1, repeats, 1) for parts in ((cos, cos), (-sin, sin))))


class Turned(NamedTuple):
    """Query `[N, H, D]`, key and value `[N, K, D]`."""

    query: Tensor
    key: Tensor
    value: Tensor


def rotary(qkv: Tensor, rotation: Rotation, key_heads: int) -> Turned:
    """Turns the pairs of the queries and keys in float `[N, H + 2K, D]` by those of their token. Differentiable once, in `qkv`.

    The heads are H queries, K = `key_heads` keys and K values; `rotation` is for H + K heads or 1. Raises ValueError, which names the
    argument.
    """
    check_rotary(qkv, rotation, key_heads)
    chosen = choose("rotary", qkv, ("reference", "cpu", "triton"))
    if chosen == "reference":
        return rotary_reference(qkv, rotation, key_heads)
    if chosen == "triton":
        from gradbus_kernels.operators.decoder_layer.triton import rotary as on_gpu  # noqa: PLC0415 - needs Triton

        return Turned(*on_gpu.rotary(qkv, *rotation, key_heads))
    return Turned(*_Rotary.apply(qkv, *rotation, key_heads))  # type: ignore[no-untyped-call]


def check_rotary(qkv: Tensor, rotation: Rotation, key_heads: int) -> None:
    """Raises ValueError about the arguments of `rotary`."""
    check_floats("qkv", qkv, (None, None, None))
    require(qkv.shape[2] % 2 == 0, "qkv", f"has heads of {qkv.shape[2]} elements; pass an even number, which are pairs")
    turned = qkv.shape[1] - key_heads
    require(0 < key_heads < turned, "key_heads", f"is {key_heads}; pass 1 to {(qkv.shape[1] - 1) // 2}, so that queries are left")
    for name, part in zip(("rotation.cos", "rotation.sin"), rotation, strict=True):
        check_floats(name, part, (len(qkv), None, qkv.shape[2]), qkv)
        check_dtype(name, part, "qkv", qkv)
        require(part.shape[1] in {1, turned}, name, f"is for {part.shape[1]} heads; pass one for 1 or {turned}")


def rotary_reference(qkv: Tensor, rotation: Rotation, key_heads: int) -> Turned:
    """The same by its definition."""
    heads, value = qkv[:, :-key_heads], qkv[:, -key_heads:]
    (first, second), half = heads.chunk(2, dim=-1), heads.shape[2] // 2
    cos, sin = rotation.cos[..., :half], rotation.sin[..., half:]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return Turned(turned[:, :-key_heads], turned[:, -key_heads:], value)


def _turn(heads: Tensor, cos: Tensor, sin: Tensor, direction: float, out: Tensor) -> None:
    """Each pair (a, b) times (cos, sin): (a cos - b sin, b cos + a sin), into `out`. Direction -1 turns it back."""
    first, second = heads.chunk(2, dim=-1)
    torch.mul(heads, cos, out=out).add_(torch.cat((second, first), dim=-1).mul_(sin), alpha=direction)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        heads = qkv[:, :-key_heads]
        turned = heads.new_empty(heads.shape)
        _turn(heads, cos, sin, 1.0, turned)
        return turned[:, :-key_heads], turned[:, -key_heads:], qkv[:, -key_heads:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        heads = torch.cat((query, key), dim=1)
        turned = heads.shape[1]
        out = heads.new_empty(len(heads), turned + value.shape[1], heads.shape[2])
        _turn(heads, cos, sin, -1.0, out[:, :turned])
        out[:, turned:] = value
        return out, None, None, None

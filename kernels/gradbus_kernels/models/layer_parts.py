"""What families choose from: norms, activations and rotary embeddings of a decoder layer, on packed tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor

from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.models.rotary import inverse_frequencies, pair_factors, pair_order, query_scales
from gradbus_kernels.operators.decoder_layer.norm import rms_norm, rms_norm_in_float32
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, Turned, rotary
from gradbus_kernels.operators.decoder_layer.swiglu import geglu, swiglu

Turn = Callable[[Tensor, Rotation, int], Turned]
"""Of queries, keys and values `[N, H + 2K, D]`, the turns of their positions, and K."""
Norm = Callable[[Tensor, Tensor, float], Tensor]
"""Of `[..., H]`, a weight `[H]` of the same dtype, and epsilon."""


class Rotations:
    """The turns of a batch, one for each layer; layers with the same rotary embedding share theirs."""

    def __init__(self, config: ModelConfig) -> None:
        distinct = list({id(rope): rope for rope in config.ropes if rope is not None}.values())
        # On the CPU and no buffers, because a cast of the module to bfloat16 would make positions inexact.
        self._query_scales = [partial(query_scales, rope) if rope.query_beta else None for rope in distinct]
        self._kinds = [(inverse_frequencies(rope, config.head_dim), pair_factors(rope, config.head_dim)) for rope in distinct]
        self._of_layer = [next((at for at, kind in enumerate(distinct) if kind is rope), 0) for rope in config.ropes]
        self._heads = config.heads, config.kv_heads

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> list[Rotation]:
        """Of positions `[N]`; computed in float32, then cast. A layer without rotary embedding ignores what it gets."""
        wide = positions[:, None].float()
        turns = []
        for (frequencies, factor), scales in zip(self._kinds, self._query_scales, strict=True):
            angles = wide * frequencies.to(positions.device)
            keys = Rotation.of_angles(angles, factor, sum(self._heads), dtype)
            turns.append(keys if scales is None else self._with_queries(keys, Rotation.of_angles(angles, factor * scales(wide), 1, dtype)))
        return [turns[at] for at in self._of_layer]

    def _with_queries(self, keys: Rotation, queries: Rotation) -> Rotation:
        """The turns of all heads, where those of queries are others than those of keys."""
        count, key_count = self._heads
        heads = [(query.expand(-1, count, -1), key[:, :1].expand(-1, key_count, -1)) for query, key in zip(queries, keys, strict=True)]
        return Rotation(*(torch.cat(parts, dim=1) for parts in heads))


def turn_of(config: ModelConfig, layer: int) -> Turn:
    """How a layer turns its queries and keys."""
    rope = config.ropes[layer]
    if rope is None:
        return _unturned
    if config.family.rope_pairs == "halves" and rope.partial == 1.0:
        return rotary
    order = torch.tensor(pair_order(rope, config.head_dim, config.family.rope_pairs == "neighbours"), device="cpu")
    return partial(_turned_in_order, order)


def _unturned(qkv: Tensor, rotation: Rotation, key_heads: int) -> Turned:  # noqa: ARG001 - a `Turn`
    return Turned(qkv[:, : -2 * key_heads], qkv[:, -2 * key_heads : -key_heads], qkv[:, -key_heads:])


def _turned_in_order(order: Tensor, qkv: Tensor, rotation: Rotation, key_heads: int) -> Turned:
    """Turns heads whose pairs lie in another order. They keep the new order, which changes no product of a query and a key."""
    ordered = qkv[:, :-key_heads].index_select(-1, order.to(qkv.device))
    return rotary(torch.cat((ordered, qkv[:, -key_heads:]), dim=1), rotation, key_heads)


def unchanged(tensor: Tensor) -> Tensor:
    """In the place of a part that a model does not have."""
    return tensor


def scaled_by(factor: float) -> Callable[[Tensor], Tensor]:
    """Multiplies by the factor, rounded to the tensor's dtype."""
    return unchanged if factor == 1.0 else lambda tensor: tensor * torch.tensor(factor, dtype=tensor.dtype, device="cpu").item()


def norms_by_kind(plain: Norm) -> Mapping[str, Norm]:
    """RMSNorm by `NormKind`; `plain` computes that of Llama."""
    return {"llama": plain, "float32": partial(_norm_in_float32, plain), "offset": partial(_norm_with_offset, plain)}


def _norm_in_float32(plain: Norm, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return plain(x.float(), weight.float(), eps).to(x.dtype)


def _norm_with_offset(plain: Norm, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return plain(x.float(), 1.0 + weight.float(), eps).to(x.dtype)


def clamped_swiglu(gate_up: Tensor, limit: float, slope: float) -> Tensor:
    """Of gates and ups in turn, `[N, 2 I]`: `(up + 1) · gate · sigmoid(slope · gate)`, both clamped first; `[N, I]`."""
    gate, up = gate_up[:, ::2].clamp(max=limit), gate_up[:, 1::2].clamp(-limit, limit)
    return (up + 1.0) * (gate * torch.sigmoid(gate * slope))


NORMS: Final[Mapping[str, Norm]] = {"llama": rms_norm, "float32": rms_norm_in_float32, "offset": partial(rms_norm_in_float32, offset=1.0)}
"""Those that can be differentiated."""
GATED: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"silu": swiglu, "gelu_pytorch_tanh": geglu}
"""By the activation's name in config.json: of gates and ups `[N, 2 I]`, gates first; `[N, I]`."""

"""The decoder's forward in the embedded engine's arithmetic: log-probabilities equal the sampler's in every bit.

Model, parameters and packing are those of `gradbus_kernels.models.causal_lm`, with other operators. As in the engine, queries, keys
and values are one product, gates and ups another, and the two elements of a rotary pair are neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gradbus.errors import ModelError
from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.language_model import LanguageModel
from gradbus_kernels.models.packing import TokenSequence, pack
from gradbus_kernels.models.rotary import rotation_rows
from gradbus_kernels.operators import using
from gradbus_kernels.operators.batch_invariant.attention import invariant_attention
from gradbus_kernels.operators.batch_invariant.embedding import invariant_embedding
from gradbus_kernels.operators.batch_invariant.layers import invariant_rms_norm, invariant_rotation, invariant_swiglu
from gradbus_kernels.operators.batch_invariant.logprob import invariant_logprob
from gradbus_kernels.operators.batch_invariant.matmul import invariant_matmul
from gradbus_kernels.operators.prefix_shared_attention.layout import PrefixLayout
from gradbus_kernels.operators.prefix_shared_attention.packing import PackedGroups


def invariant_packed_logprobs(model: LanguageModel, sequences: Sequence[TokenSequence], temperature: float) -> tuple[Tensor, Tensor]:
    """`packed_logprobs`, where no token's bits depend on the other sequences. Raises ModelError for a model that the engine cannot run."""
    model.family.require("batch_invariant")
    model = cast("CausalLM", model)
    if features := model.config.invariant_lacks:
        raise ModelError(f'numerics = "batch_invariant" does not compute {", ".join(features)}; choose another model, or numerics = "fast"')
    batch = pack(sequences, model.device)
    with using("cpu"):  # as the engine, for any implementation that the process requests
        hidden = _hidden(model, batch).index_select(0, batch.selected)
        return invariant_logprob(hidden, model.head_weight, batch.targets, temperature, allow_nan=True)


def _hidden(model: CausalLM, batch: PackedGroups) -> Tensor:
    decoder, config = model.model, model.config
    hidden = invariant_embedding(batch.input_ids[0], decoder.embed_tokens.weight)
    positions = batch.position_ids[0]
    for layer, turn in zip(cast("Sequence[Any]", decoder.layers), _turns(config, positions), strict=True):
        if decoder.checkpointing and torch.is_grad_enabled():
            hidden = checkpoint(_layer, layer, hidden, turn, batch.layout, config, use_reentrant=False, preserve_rng_state=False)
        else:
            hidden = _layer(layer, hidden, turn, batch.layout, config)
    return _norm(decoder.norm, hidden)


def _turns(config: ModelConfig, positions: Tensor) -> list[Tensor]:
    """Rows of each layer's rotary table, which layers with the same rotary embedding share."""
    length = int(positions.max()) + 1
    found: dict[int, Tensor] = {}
    for rope in config.ropes:
        if id(rope) not in found:
            found[id(rope)] = rotation_rows(rope, config, length).to(positions.device).index_select(0, positions)
    return [found[id(rope)] for rope in config.ropes]


def _layer(layer: Any, hidden: Tensor, turn: Tensor, layout: PrefixLayout, config: ModelConfig) -> Tensor:
    with using("cpu"):  # also when the backward pass computes the layer again
        hidden = _attention(layer.self_attn, _norm(layer.input_layernorm, hidden), hidden, turn, layout, config)
        return _feed_forward(layer.mlp, _norm(layer.post_attention_layernorm, hidden), hidden)


def _norm(norm: Any, hidden: Tensor) -> Tensor:
    return invariant_rms_norm(hidden, norm.weight, norm.eps)


def _attention(attention: Any, normed: Tensor, hidden: Tensor, turn: Tensor, layout: PrefixLayout, config: ModelConfig) -> Tensor:
    """Adds grouped-query attention to `hidden`."""
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    size = config.head_dim
    weight = torch.cat((_by_pairs(query.weight, size), _by_pairs(key.weight, size), value.weight)).t()
    bias = torch.cat((_by_pairs(query.bias, size), _by_pairs(key.bias, size), value.bias)) if config.biases.qkv else None
    qkv = invariant_matmul(normed, weight.contiguous(), bias)
    turned = invariant_rotation(_normed_heads(attention, qkv, config)[:, : -config.kv_heads * size], turn)
    queries, keys = torch.split(turned, [config.heads * size, config.kv_heads * size], dim=1)
    attended = _attend(queries, keys, qkv[:, -config.kv_heads * size :], layout, size)
    return invariant_matmul(attended, attention.o_proj.weight.t().contiguous(), hidden)


def _normed_heads(attention: Any, qkv: Tensor, config: ModelConfig) -> Tensor:
    """`qkv` with each head of its queries and keys normalised, if the family does that."""
    if not config.family.qk_norm:
        return qkv
    size = config.head_dim
    queries, keys, values = torch.split(qkv, [config.heads * size, config.kv_heads * size, config.kv_heads * size], dim=1)
    normed = [
        invariant_rms_norm(heads.reshape(-1, size), _by_pairs(norm.weight, size), norm.eps).view(heads.shape)
        for heads, norm in ((queries, attention.q_norm), (keys, attention.k_norm))
    ]
    return torch.cat((*normed, values), dim=1)


def _by_pairs(rows: Tensor, size: int) -> Tensor:
    """Rows of heads of `size`, reordered so that rotary pairs are neighbours; Hugging Face stores first halves, then second halves."""
    return rows.view(-1, 2, size // 2, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, layout: PrefixLayout, size: int) -> Tensor:
    """Attention of each packed segment to itself, and of a branch to its root too; `[N, heads * D]`."""
    found = []
    alike = groupby(range(len(layout.parents)), key=lambda segment: (layout.depths[segment], layout.lengths[segment]))
    for _, members in alike:
        segments = list(members)
        key, value = (_seen(part, segments, layout, size) for part in (keys, values))
        attended = invariant_attention(_own(queries, segments, layout, size), key, value, size**-0.5)
        found.append(attended.transpose(1, 2).flatten(0, 1).flatten(1))
    return torch.cat(found)


def _own(packed: Tensor, segments: Sequence[int], layout: PrefixLayout, size: int) -> Tensor:
    """`[S, heads, T, D]`: the tokens of S neighbouring segments of equal length."""
    first, last = layout.offsets[segments[0]], layout.offsets[segments[-1] + 1]
    return packed[first:last].view(len(segments), layout.lengths[segments[0]], -1, size).transpose(1, 2)


def _seen(packed: Tensor, segments: Sequence[int], layout: PrefixLayout, size: int) -> Tensor:
    """The same, with each segment's root before it."""
    own = _own(packed, segments, layout, size)
    roots = [_own(packed, [parent], layout, size) for segment in segments if (parent := layout.parents[segment]) is not None]
    return torch.cat((torch.cat(roots), own), dim=2) if roots else own


def _feed_forward(block: Any, normed: Tensor, hidden: Tensor) -> Tensor:
    """Adds SwiGLU to `hidden`."""
    weight = torch.cat((block.gate_proj.weight, block.up_proj.weight)).t().contiguous()
    gated = invariant_swiglu(invariant_matmul(normed, weight))
    return invariant_matmul(gated, block.down_proj.weight.t().contiguous(), hidden)

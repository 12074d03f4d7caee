"""The decoder of all families in `gradbus.formats.model_families`, on packed tokens, with Hugging Face's names and order of parameters.

It computes the same operations as transformers' classes, without importing them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.models.rotary import attention_factor, inverse_frequencies
from gradbus_kernels.operators import PackedGroups, PrefixLayout, prefix_shared_attention
from gradbus_kernels.operators.decoder_layer.norm import rms_norm
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, rotary
from gradbus_kernels.operators.decoder_layer.swiglu import swiglu
from gradbus_kernels.operators.linear.api import linear, padded_rows


class Decoder(nn.Module):
    """Embedding, layers and last norm; no head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.checkpointing = False
        """Whether a backward pass computes each layer again instead of keeping its activations."""
        self.embed_tokens = _Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, window) for window in config.windows)
        self.norm = _Norm(config, config.hidden_size)
        # Not a buffer, because a cast of the module to bfloat16 would make positions inexact.
        self._frequencies = inverse_frequencies(config.rope, config.head_dim)
        self._attention_factor = attention_factor(config.rope)
        self._turned_heads = config.heads + config.kv_heads

    def forward(self, batch: PackedGroups) -> Tensor:
        """Hidden states after the last norm, `[N, hidden_size]` in the weights' dtype."""
        weight = self.embed_tokens.weight
        tokens = batch.layout.tokens
        batch = batch.padded(padded_rows(tokens, weight.dtype, weight.device))
        hidden: Tensor = self.embed_tokens(batch.input_ids[0])
        rotation = self._rotation(batch.position_ids[0], hidden.dtype)
        for layer in self.layers:
            if self.checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, rotation, batch.layout, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden = layer(hidden, rotation, batch.layout)
        normed: Tensor = self.norm(hidden)
        return normed[:tokens]

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Computed in float32, then cast."""
        angles = positions[:, None].float() * self._frequencies.to(positions.device)
        return Rotation.of_angles(angles, self._attention_factor, self._turned_heads, dtype)


class CausalLM(nn.Module):
    """`model` and its head. A tied head is the embedding and has no parameter of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = None if config.tied else _Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, batch: PackedGroups) -> Tensor:
        """Hidden states after the last norm, `[N, hidden_size]`; the caller multiplies those it needs by `head_weight`."""
        hidden: Tensor = self.model(batch)
        return hidden

    @property
    def head_weight(self) -> nn.Parameter:
        """`[vocab_size, hidden_size]`."""
        owner = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return cast("nn.Parameter", owner.weight)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.head_weight.device


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.self_attn = _Attention(config, window)
        self.mlp = _FeedForward(config)
        self.input_layernorm = _Norm(config, config.hidden_size)
        self.post_attention_layernorm = _Norm(config, config.hidden_size)

    def forward(self, hidden: Tensor, rotation: Rotation, layout: PrefixLayout) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, layout)
        fed: Tensor = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + fed


class _Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023)."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.head_dim, self.key_heads, self.window = config.head_dim, config.kv_heads, window
        self.q_proj = _Linear(config.hidden_size, query, bias=config.qkv_bias)
        self.k_proj = _Linear(config.hidden_size, key, bias=config.qkv_bias)
        self.v_proj = _Linear(config.hidden_size, key, bias=config.qkv_bias)
        self.o_proj = _Linear(query, config.hidden_size, bias=config.out_bias)
        self._normed: Callable[[Tensor], Tensor] = _unchanged
        if config.family.qk_norm:
            self.q_norm, self.k_norm = _Norm(config, config.head_dim), _Norm(config, config.head_dim)
            self._normed = self._normed_heads

    def forward(self, hidden: Tensor, rotation: Rotation, layout: PrefixLayout) -> Tensor:
        qkv = _side_by_side((self.q_proj, self.k_proj, self.v_proj), hidden).view(len(hidden), -1, self.head_dim)
        query, key, value = rotary(self._normed(qkv), rotation, self.key_heads)
        attended = prefix_shared_attention(query, key, value, layout, self.head_dim**-0.5, self.window)
        out: Tensor = self.o_proj(attended.flatten(1))
        return out

    def _normed_heads(self, qkv: Tensor) -> Tensor:
        """Queries and keys, each head normalised, then the values."""
        keys, values = -2 * self.key_heads, -self.key_heads
        return torch.cat((self.q_norm(qkv[:, :keys]), self.k_norm(qkv[:, keys:values]), qkv[:, values:]), dim=1)


class _FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = _Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = _Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = _Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        down: Tensor = self.down_proj(swiglu(_side_by_side((self.gate_proj, self.up_proj), hidden)))
        return down


class _Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019), computed in float32 and cast back before the weight."""

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = config.norm_eps

    def forward(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.weight, self.eps)


class _Linear(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weight, self.bias)

    def reset_parameters(self) -> None:
        """Nothing: what is loaded overwrites it."""


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _side_by_side(layers: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """The outputs of linear layers of the same inputs, `[N, sum of their sizes]`: one product where their weights are at hand.

    ZeRO-3 marks the weights that it gathers only while their own layer is called.
    """
    plain = [layer for layer in layers if type(layer) is _Linear and not hasattr(layer.weight, "ds_id")]
    if len(plain) < len(layers):
        return torch.cat([layer(inputs) for layer in layers], dim=-1)
    weights: list[Tensor] = [layer.weight for layer in plain]
    biases: list[Tensor] = [layer.bias for layer in plain if layer.bias is not None]
    return linear(inputs, torch.cat(weights), torch.cat(biases) if biases else None)


class _Embedding(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        # A token may occur thousands of times in a batch; bfloat16 cannot add up so many gradients.
        if self.weight.dtype == torch.float32:
            return super().forward(ids)
        gathered: Tensor = _Gathered.apply(ids, self.weight)  # type: ignore[no-untyped-call]
        return gathered

    def reset_parameters(self) -> None:
        """Nothing: what is loaded overwrites it."""


class _Gathered(torch.autograd.Function):
    """Rows of a table, whose gradient is added up in float32 at least."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = len(table)
        return table[ids]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        total = upstream.new_zeros(ctx.rows, upstream.shape[-1], dtype=torch.promote_types(upstream.dtype, torch.float32))
        total.index_add_(0, ids.reshape(-1), upstream.reshape(-1, upstream.shape[-1]).to(total.dtype))
        return None, total.to(upstream.dtype)

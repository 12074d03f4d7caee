"""The decoder of all families in `gradbus.formats.model_families`, on packed tokens, with Hugging Face's names and order of parameters.

It computes the same operations as transformers' classes, without importing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gradbus.formats.expert_config import ExpertsConfig
from gradbus.formats.model_config import ModelConfig
from gradbus.formats.model_families import NORM_PLACES
from gradbus_kernels.models.embedding import Embedding
from gradbus_kernels.models.language_model import LanguageModel
from gradbus_kernels.models.layer_parts import GATED, NORMS, Norm, Rotations, scaled_by, turn_of, unchanged
from gradbus_kernels.models.mixture.experts import MixtureOfExperts
from gradbus_kernels.models.packing import Int16, TokenSequence, given_routes, pack
from gradbus_kernels.operators import (
    PackedGroups,
    PrefixLayout,
    Softcapped,
    prefix_shared_attention,
    prefix_shared_attention_with_sinks,
)
from gradbus_kernels.operators.decoder_layer.head_norm import HeadNorms, normed_rotary
from gradbus_kernels.operators.decoder_layer.rotary import Rotation, Turned, rotary
from gradbus_kernels.operators.linear.api import linear, padded_rows


class Decoder(nn.Module):
    """Embedding, layers and last norm; no head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.checkpointing = False
        """Whether a backward pass computes each layer again instead of keeping its activations."""
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, number) for number in range(config.layers))
        self.norm = _Norm(config, config.hidden_size)
        self._rotations = Rotations(config)
        self._scaled_embeddings = scaled_by(config.multipliers.embedding)
        self._scaled_outputs = scaled_by(config.multipliers.hidden)

    def forward(self, batch: PackedGroups) -> Tensor:
        """Hidden states after the last norm, which the head turns into logits, `[N, hidden_size]` in the weights' dtype."""
        weight = self.embed_tokens.weight
        tokens = batch.layout.tokens
        batch = batch.padded(padded_rows(tokens, weight.dtype, weight.device))  # the products' rows alone: padding attends to nothing
        hidden: Tensor = self._scaled_embeddings(self.embed_tokens(batch.input_ids[0]))
        rotations = self._rotations(batch.position_ids[0], hidden.dtype)
        routes = iter([] if batch.routes is None else batch.routes.unbind(1))
        for layer, rotation in zip(self.layers, rotations, strict=True):
            chosen = next(routes, None) if layer.has_experts else None
            if self.checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, rotation, batch.layout, chosen, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden = layer(hidden, rotation, batch.layout, chosen)
        normed: Tensor = self._scaled_outputs(self.norm(hidden))
        return normed[:tokens]


class CausalLM(LanguageModel):
    """`model` and its head. A tied head is the embedding and has no parameter of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.family, self.vocab_size = config, config.family, config.vocab_size
        self.model = Decoder(config)
        self.lm_head = None if config.tied else _Linear(config.hidden_size, config.vocab_size, bias=False)
        self._replayed: ExpertsConfig | None = None
        """Set once routes are replayed."""

    def forward(self, batch: PackedGroups) -> Tensor:
        """Hidden states after the last norm, `[N, hidden_size]`; the caller multiplies those it needs by `head_weight`."""
        hidden: Tensor = self.model(batch)
        return hidden

    @property
    def head_weight(self) -> nn.Parameter:
        """`[vocab_size, hidden_size]`."""
        owner = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return cast("nn.Parameter", owner.weight)

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by the names of the model's folder."""
        return super().named_parameters(prefix or self.config.family.prefix, recurse, remove_duplicate)

    def tempered(self, temperature: float) -> float | Softcapped:
        """See `LanguageModel`."""
        softcap = self.config.multipliers.logits_softcap
        return Softcapped(temperature, softcap) if softcap else temperature

    def set_checkpointing(self, on: bool) -> None:
        """See `LanguageModel`."""
        self.model.checkpointing = on

    def pack(self, sequences: Sequence[TokenSequence]) -> PackedGroups:
        """See `LanguageModel`."""
        return pack(sequences, self.device, self.routes_of(sequences))

    def routes_of(self, sequences: Sequence[TokenSequence]) -> Sequence[Int16] | None:
        """The routes of the sequences if they are replayed; see `given_routes`."""
        return given_routes(sequences, self._replayed) if self._replayed else None

    def replay_routes(self) -> None:
        """See `LanguageModel`."""
        if self.config.experts is None:
            super().replay_routes()
        self._replayed = self.config.experts


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, number)
        experts = config.experts_of(number)
        self._feed_forward = experts.family.block if experts else "mlp"
        self.add_module(self._feed_forward, _mixture(experts, config) if experts else _FeedForward(config))
        for name, _ in config.family.norms:
            self.add_module(name, _Norm(config, config.hidden_size))
        places = {place: getattr(self, name) for name, place in config.family.norms}
        self._norms: list[Callable[[Tensor], Tensor]] = [places.get(place, unchanged) for place in NORM_PLACES]
        self._residual = config.multipliers.residual
        self.has_experts = experts is not None

    def forward(self, hidden: Tensor, rotation: Rotation, layout: PrefixLayout, routes: Tensor | None) -> Tensor:
        before_attention, after_attention, before_mlp, after_mlp = self._norms
        attended = after_attention(self.self_attn(before_attention(hidden), rotation, layout))
        hidden = torch.add(hidden, attended, alpha=self._residual)
        feed_forward, normed = getattr(self, self._feed_forward), before_mlp(hidden)
        fed = feed_forward(normed, routes) if self.has_experts else feed_forward(normed)
        return torch.add(hidden, after_mlp(fed), alpha=self._residual)


class _Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023)."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        self.head_dim, self.key_heads, self.window = config.head_dim, config.kv_heads, config.windows[number]
        scale, softcap = config.multipliers.scores, config.multipliers.scores_softcap
        self.scale: float | Softcapped = Softcapped(scale, softcap) if softcap else scale
        for layer in config.attention_layers:
            self.add_module(layer.name, _Linear(layer.columns, layer.rows, bias=layer.biased))
        self.o_proj: nn.Module
        self._inputs = [layer.name for layer in config.attention_layers if layer.name != "o_proj"]
        self._normed: Callable[[Tensor], Tensor] = unchanged
        self._turn = turn_of(config, number)
        self._turned = self._normed_and_turned
        if config.norms.qk:
            self.q_norm, self.k_norm = (_Norm(config, size) for size in config.qk_norm_sizes)
            self._normed = self._normed_heads if config.norms.qk == "head" else self._normed_width
            if config.norms.qk == "head" and config.family.norm_kind == "llama" and self._turn is rotary:
                self._turned = self._in_one_pass
        self._attended = self._without_sinks
        if config.family.has_sinks:
            self.sinks = nn.Parameter(torch.empty(config.heads))
            self._attended = self._with_sinks

    def forward(self, hidden: Tensor, rotation: Rotation, layout: PrefixLayout) -> Tensor:
        rows, padding = layout.tokens, len(hidden) - layout.tokens
        qkv = _side_by_side([getattr(self, name) for name in self._inputs], hidden)
        heads = (qkv[:rows] if padding else qkv).view(rows, -1, self.head_dim)
        attended = self._attended(self._turned(heads, rotation), layout).flatten(1)
        out: Tensor = self.o_proj(functional.pad(attended, (0, 0, 0, padding)) if padding else attended)
        return out

    def _without_sinks(self, turned: Turned, layout: PrefixLayout) -> Tensor:
        return prefix_shared_attention(*turned, layout, self.scale, self.window)

    def _with_sinks(self, turned: Turned, layout: PrefixLayout) -> Tensor:
        return prefix_shared_attention_with_sinks(*turned, self.sinks, layout, self.window)

    def _normed_and_turned(self, qkv: Tensor, rotation: Rotation) -> Turned:
        return self._turn(self._normed(qkv), rotation, self.key_heads)

    def _in_one_pass(self, qkv: Tensor, rotation: Rotation) -> Turned:
        if any(hasattr(norm.weight, "ds_id") for norm in (self.q_norm, self.k_norm)):
            return self._normed_and_turned(qkv, rotation)  # ZeRO-3 gathers a weight while its own layer is called
        return normed_rotary(qkv, HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps), rotation, self.key_heads)

    def _normed_heads(self, qkv: Tensor) -> Tensor:
        """Queries and keys, each head normalised, then the values."""
        query, key, value = self._parts(qkv)
        return torch.cat((self.q_norm(query), self.k_norm(key), value), dim=1)

    def _normed_width(self, qkv: Tensor) -> Tensor:
        """All queries of a token normalised together, all keys together, then the values."""
        query, key, value = self._parts(qkv)
        normed = self.q_norm(query.flatten(1)).view(query.shape), self.k_norm(key.flatten(1)).view(key.shape)
        return torch.cat((*normed, value), dim=1)

    def _parts(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = -2 * self.key_heads, -self.key_heads
        return qkv[:, :keys], qkv[:, keys:values], qkv[:, values:]


class _FeedForward(nn.Module):
    """A gated linear unit (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        for layer in config.mlp_layers:
            self.add_module(layer.name, _Linear(layer.columns, layer.rows, bias=layer.biased))
        self.down_proj: nn.Module
        self._inputs = [layer.name for layer in config.mlp_layers if layer.name != "down_proj"]
        self._gated: Callable[[Tensor], Tensor] = GATED[config.family.activation[1]]

    def forward(self, hidden: Tensor) -> Tensor:
        down: Tensor = self.down_proj(self._gated(_side_by_side([getattr(self, name) for name in self._inputs], hidden)))
        return down


def _mixture(experts: ExpertsConfig, config: ModelConfig) -> MixtureOfExperts:
    """The experts of a layer, and beside them what every token goes to: a feed-forward part of another width."""
    shared = _FeedForward(replace(config, intermediate_size=experts.shared_width)) if experts.shared_width else None
    return MixtureOfExperts(experts, config, shared)


class _Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019), in the family's kind."""

    def __init__(self, config: ModelConfig, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = config.norms.eps
        self._normed: Norm = NORMS[config.family.norm_kind]

    def forward(self, hidden: Tensor) -> Tensor:
        return self._normed(hidden, self.weight, self.eps)


class _Linear(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weight, self.bias)

    def reset_parameters(self) -> None:
        """Nothing: what is loaded overwrites it."""


def _side_by_side(layers: Sequence[nn.Module], inputs: Tensor) -> Tensor:
    """The outputs of linear layers of the same inputs, `[N, sum of their sizes]`: one product where their weights are at hand.

    ZeRO-3 marks the weights that it gathers only while their own layer is called.
    """
    if len(layers) == 1:
        return cast("Tensor", layers[0](inputs))
    plain = [layer for layer in layers if type(layer) is _Linear and not hasattr(layer.weight, "ds_id")]
    if len(plain) < len(layers):
        return torch.cat([layer(inputs) for layer in layers], dim=-1)
    weights: list[Tensor] = [layer.weight for layer in plain]
    biases: list[Tensor] = [layer.bias for layer in plain if layer.bias is not None]
    return linear(inputs, torch.cat(weights), torch.cat(biases) if biases else None)

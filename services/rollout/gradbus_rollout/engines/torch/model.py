"""One forward of a decoder over a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_config import ModelConfig, read_model_config
from gradbus_kernels.models.rotary import rotation_rows
from gradbus_kernels.operators.batch_invariant.attention import MASKED, biases_of, pages
from gradbus_kernels.operators.batch_invariant.matmul import WIDTH
from gradbus_rollout.engines.torch.arithmetic import Arithmetic, Fast, Pages, attend_capped, visibility_biases
from gradbus_rollout.engines.torch.buffers import Buffers
from gradbus_rollout.engines.torch.cache import KvCache
from gradbus_rollout.engines.torch.family_parts import FamilyParts
from gradbus_rollout.engines.torch.mixture import Mixture
from gradbus_rollout.engines.torch.weights import LayerWeights, ModelWeights


class DecoderModel:
    """Weights and the forward. The shape of each product follows from the shape of its input alone."""

    def __init__(
        self, config: ModelConfig, like: Tensor, arithmetic: Arithmetic | None = None, rounded_to: torch.dtype | None = None
    ) -> None:
        """`like` gives device and dtype of the computation; `arithmetic` defaults to `Fast`; see `ModelWeights` for `rounded_to`."""
        self.config = config
        self.weights = ModelWeights(config, like, rounded_to)
        self._like = like
        self._arithmetic = arithmetic or Fast()
        self._parts = FamilyParts(config)
        self._tables = self._empty_tables()
        self._buffers: dict[torch.Size, Buffers] = {}
        softcap = config.multipliers.scores_softcap
        self._attend_pages = partial(attend_capped, softcap) if softcap else self._arithmetic.attend
        self._norm_heads = self._normed_heads if config.norms.qk else _nothing
        self._feed_forwards = [
            partial(self._mix, Mixture(layer.experts, self._arithmetic, self._parts.gated)) if layer.experts else self._feed_forward
            for layer in self.weights.layers
        ]
        self._attend = self._attend_with_sinks if config.family.has_sinks else self._attend_without_sinks
        self._add_attended = self._add_biased if config.biases.out else self._add_unbiased
        self._add = self._add_normed if self._parts.changes_outputs else self._add_product

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights, cache and hidden states."""
        return self._like.dtype

    def new_cache(self, rows: int) -> KvCache:
        """An empty cache for `rows` sequences."""
        return KvCache(self.config, rows, self._like)

    def drop_buffers(self) -> None:
        """Frees what the next forward makes again."""
        self._buffers.clear()
        self._tables = self._empty_tables()

    def forward(self, tokens: Tensor, positions: Tensor, cache: KvCache) -> Tensor:
        """Hidden states `[R * C, hidden]` of `tokens` int64 `[R, C]` at `positions` int64 `[R, C]` of the cache's rows.

        Writes their keys and values into the cache first; each token then attends to the positions of its row up to its own.
        """
        longest = int(positions.max()) + 1
        cache.reserve(longest)
        self._reserve_tables(cache.capacity)
        spans, parts = pages(longest), self._parts
        biases = self._biases(positions, spans)
        indexes = cache.indexes(positions)
        buffers = self._buffers_for(positions.shape)
        for table, rotation in zip(self._tables, buffers.rotations, strict=True):
            torch.index_select(table, 0, positions.view(-1), out=rotation)
        x = parts.scaled_embeddings(self.weights.embedding.index_select(0, tokens.view(-1)))
        for number, (layer, layer_pages) in enumerate(zip(self.weights.layers, cache.pages(spans), strict=True)):
            self._project(layer, x, buffers, parts.rope_of_layer[number])
            cache.write(number, indexes, buffers.entries())
            attended = self._attend(layer, buffers.queries(), layer_pages, biases[parts.window_of_layer[number]])
            self._add_attended(layer, buffers.by_token(attended), x)
            self._feed_forwards[number](layer, x, buffers)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, vocab]` from hidden states `[N, hidden]`."""
        last = self._parts.scaled_outputs(self._parts.norm(hidden, self.weights.norm))
        return self._parts.bounded_logits(self._arithmetic.multiply(last, self.weights.head_columns))

    def _biases(self, positions: Tensor, spans: Sequence[tuple[int, int]]) -> list[list[Tensor]]:
        """For each distinct window, biases of the queries, in the layout of `Buffers.queries`."""
        (rows, count), key, shared = positions.shape, self.config.kv_heads, self.config.heads // self.config.kv_heads
        width = self._arithmetic.width(count * shared, self.config.head_dim, spans, self.dtype)
        if count == 1 and width == shared:
            of_rows = [biases_of(positions.view(-1), spans, key * shared, window) for window in self._parts.windows]
            return [[bias.view(rows * key, shared, -1) for bias in biases] for biases in of_rows]
        seen = positions.view(rows, 1, count, 1).expand(-1, key, -1, shared).reshape(rows * key, -1)
        return [visibility_biases(seen, spans, width, window) for window in self._parts.windows]

    def _project(self, layer: LayerWeights, x: Tensor, buffers: Buffers, rope: int) -> None:
        """Queries, keys and values of `x` `[N, hidden]`, the first two rotated, into `buffers.qkv`."""
        self._arithmetic.multiply(self._parts.before(x, layer.norms.get("before_attention")), layer.qkv, layer.qkv_bias, buffers.qkv)
        self._norm_heads(layer, buffers)
        buffers.rotate(rope)

    def _attend_without_sinks(self, layer: LayerWeights, queries: Tensor, pages: Pages, biases: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        return self._attend_pages(queries, pages, biases, self._parts.scale)

    def _attend_with_sinks(self, layer: LayerWeights, queries: Tensor, pages: Pages, biases: Sequence[Tensor]) -> Tensor:
        """A sink is the first key of a page before the others: its key is zero, its bias the logit, and its value zero."""
        keys, values = queries.new_zeros(len(queries), queries.shape[2], WIDTH), queries.new_zeros(len(queries), WIDTH, queries.shape[2])
        of_head = cast("Tensor", layer.sinks).float().view(self.config.kv_heads, 1, -1)
        bias = torch.full((*queries.shape[:2], WIDTH), MASKED, device=queries.device)
        bias.view(-1, self.config.kv_heads, queries.shape[1] // of_head.shape[2], of_head.shape[2], WIDTH)[..., 0] = of_head
        return self._attend_pages(queries, [(keys, values), *pages], [bias, *biases], self._parts.scale)

    def _add_unbiased(self, layer: LayerWeights, attended: Tensor, x: Tensor) -> None:
        """Add the attention's output to `x` in place."""
        self._add(attended, layer.out, x, layer.norms.get("after_attention"))

    def _add_biased(self, layer: LayerWeights, attended: Tensor, x: Tensor) -> None:
        out = self._arithmetic.multiply(attended, layer.out, layer.out_bias)
        x.add_(self._parts.after(out, layer.norms.get("after_attention")), alpha=self.config.multipliers.residual)

    def _normed_heads(self, layer: LayerWeights, buffers: Buffers) -> None:
        """Normalise the queries and keys in `buffers.qkv`."""
        for rows, weight in zip(buffers.normed, layer.qk_norms, strict=True):
            rows.copy_(self._parts.norm(rows, weight))

    def _feed_forward(self, layer: LayerWeights, x: Tensor, buffers: Buffers) -> None:
        """Add the gated feed-forward part to `x` in place."""
        normed = self._parts.before(x, layer.norms.get("before_mlp"))
        gate_up = self._arithmetic.multiply_anywhere(normed, layer.unit.gate_up, buffers.gate_up)
        self._add(self._parts.gated(*buffers.halves(gate_up)), layer.unit.down, x, layer.norms.get("after_mlp"))

    def _mix(self, mixture: Mixture, layer: LayerWeights, x: Tensor, buffers: Buffers) -> None:  # noqa: ARG002 - as `_feed_forward`
        """Add the outputs of the layer's experts to `x` in place."""
        mixed = mixture(self._parts.before(x, layer.norms.get("before_mlp")))
        x.add_(self._parts.after(mixed, layer.norms.get("after_mlp")), alpha=self.config.multipliers.residual)

    def _add_product(self, inputs: Tensor, weight: Tensor, x: Tensor, norm: Tensor | None) -> None:  # noqa: ARG002 - as `_add_normed`
        """Add the product to `x` in place."""
        self._arithmetic.multiply(inputs, weight, x, x)

    def _add_normed(self, inputs: Tensor, weight: Tensor, x: Tensor, norm: Tensor | None) -> None:
        """Add the product to `x` in place, normalised or multiplied before."""
        x.add_(self._parts.after(self._arithmetic.multiply(inputs, weight), norm), alpha=self.config.multipliers.residual)

    def _buffers_for(self, batch: torch.Size) -> Buffers:
        found = self._buffers.get(batch)
        if found is None:
            found = self._buffers[batch] = Buffers(self.config, batch, self._like)
        return found

    def _empty_tables(self) -> list[Tensor]:
        """Rotary tables of no positions."""
        return [self._like.new_empty(0, (self.config.heads + self.config.kv_heads) * self.config.head_dim) for _ in self._parts.ropes]

    def _reserve_tables(self, length: int) -> None:
        if length > self._tables[0].shape[0]:
            # Whole rows multiply several times faster on a CPU than head by head.
            self._tables = [rotation_rows(rope, self.config, length).to(self._like.device) for rope in self._parts.ropes]


def _nothing(layer: LayerWeights, buffers: Buffers) -> None:
    """Queries and keys are not normalised."""


def read_supported_config(folder: Path, numerics: Literal["fast", "batch_invariant"] = "fast") -> ModelConfig:
    """Configuration of the model in `folder`. Raises ModelError for a model with a feature that the embedded engine does not compute."""
    check_model_folder(folder).family.require("embedded_engine")
    config = read_model_config(folder)
    if numerics == "batch_invariant":
        config.family.require("batch_invariant")
    if features := config.engine_lacks if numerics == "fast" else config.invariant_lacks:
        how = "" if numerics == "fast" else f" with {numerics} numerics"
        asked = f"config.json asks for {', '.join(features)}"
        raise ModelError(f"{asked}, which the embedded engine does not compute{how}; choose another model")
    return config

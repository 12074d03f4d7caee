"""One forward of a decoder over a cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus.formats.model_config import ModelConfig, read_model_config
from gradbus_rollout.engines.torch.arithmetic import Arithmetic, Fast
from gradbus_rollout.engines.torch.attention import Attention, Batch, PagedAttention
from gradbus_rollout.engines.torch.family_parts import FamilyParts
from gradbus_rollout.engines.torch.gpu.attention import CachedAttention
from gradbus_rollout.engines.torch.mixture import Mixture
from gradbus_rollout.engines.torch.weights import LayerWeights, ModelWeights


class DecoderModel:
    """Weights and the forward. The shape of each product follows from the shape of its input alone."""

    def __init__(
        self,
        config: ModelConfig,
        like: Tensor,
        arithmetic: Arithmetic | None = None,
        rounded_to: torch.dtype | None = None,
        on_gpu: bool | None = None,
    ) -> None:
        """`like` gives device and dtype of the computation; `arithmetic` defaults to `Fast`; see `ModelWeights` for `rounded_to`.

        `on_gpu` chooses the operators of a GPU, which compute on a CPU too, for tests; the default is by device.
        """
        self.config = config
        self.weights = ModelWeights(config, like, rounded_to)
        self.on_gpu = like.is_cuda if on_gpu is None else on_gpu
        self._like = like
        self._arithmetic = arithmetic or Fast()
        self._parts = FamilyParts(config, self.on_gpu)
        self._attention: Attention = (
            CachedAttention(config, self._parts, like) if self.on_gpu else PagedAttention(config, self._parts, self._arithmetic, like)
        )
        self._feed_forwards = [
            partial(self._mix, Mixture(layer.experts, self._arithmetic, self._parts.gate)) if layer.experts else self._feed_forward
            for layer in self.weights.layers
        ]
        self._add_attended = self._add_biased if config.biases.out else self._add_unbiased
        self._add = self._add_normed if self._parts.changes_outputs else self._add_product

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights, cache and hidden states."""
        return self._like.dtype

    def new_cache(self, rows: int) -> Any:
        """An empty `Cache` for `rows` sequences."""
        return self._attention.new_cache(rows)

    def drop_buffers(self) -> None:
        """Frees what the next forward makes again."""
        self._attention.drop_buffers()

    def forward(self, tokens: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Hidden states `[R * C, hidden]` of `tokens` int64 `[R, C]` at `positions` int64 `[R, C]` of the cache's rows.

        Writes their keys and values into the cache first; each token then attends to the positions of its row up to its own. On a GPU the
        cache must have been made long enough (`RowCache.reserve`), and the tokens of a row are at consecutive positions.
        """
        batch = self._attention.batch(positions, cache)
        x = self._parts.scaled_embeddings(self.weights.embedding.index_select(0, tokens.view(-1)))
        for number, layer in enumerate(self.weights.layers):
            normed = self._parts.before(x, layer.norms.get("before_attention"))
            self._arithmetic.multiply(normed, layer.qkv, layer.qkv_bias, batch.qkv)
            self._add_attended(layer, batch.attend(number, layer), x)
            self._feed_forwards[number](layer, x, batch)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, vocab]` from hidden states `[N, hidden]`."""
        last = self._parts.scaled_outputs(self._parts.norm(hidden, self.weights.norm))
        return self._parts.bounded_logits(self._arithmetic.multiply(last, self.weights.head_columns))

    def _add_unbiased(self, layer: LayerWeights, attended: Tensor, x: Tensor) -> None:
        """Add the attention's output to `x` in place."""
        self._add(attended, layer.out, x, layer.norms.get("after_attention"))

    def _add_biased(self, layer: LayerWeights, attended: Tensor, x: Tensor) -> None:
        out = self._arithmetic.multiply(attended, layer.out, layer.out_bias)
        x.add_(self._parts.after(out, layer.norms.get("after_attention")), alpha=self.config.multipliers.residual)

    def _feed_forward(self, layer: LayerWeights, x: Tensor, batch: Batch) -> None:
        """Add the gated feed-forward part to `x` in place."""
        normed = self._parts.before(x, layer.norms.get("before_mlp"))
        gate_up = self._arithmetic.multiply_anywhere(normed, layer.unit.gate_up, batch.gate_up)
        self._add(batch.gated(gate_up), layer.unit.down, x, layer.norms.get("after_mlp"))

    def _mix(self, mixture: Mixture, layer: LayerWeights, x: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as `_feed_forward`
        """Add the outputs of the layer's experts to `x` in place."""
        mixed = mixture(self._parts.before(x, layer.norms.get("before_mlp")))
        x.add_(self._parts.after(mixed, layer.norms.get("after_mlp")), alpha=self.config.multipliers.residual)

    def _add_product(self, inputs: Tensor, weight: Tensor, x: Tensor, norm: Tensor | None) -> None:  # noqa: ARG002 - as `_add_normed`
        """Add the product to `x` in place."""
        self._arithmetic.multiply(inputs, weight, x, x)

    def _add_normed(self, inputs: Tensor, weight: Tensor, x: Tensor, norm: Tensor | None) -> None:
        """Add the product to `x` in place, normalised or multiplied before."""
        x.add_(self._parts.after(self._arithmetic.multiply(inputs, weight), norm), alpha=self.config.multipliers.residual)


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

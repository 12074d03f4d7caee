"""The sizes of a model that memory and time follow from; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gradbus.formats.model_config import ModelConfig, tensor_shapes
from gradbus.spec import LoraSpec


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of elements."""

    parameters: int
    embedding: int
    """Of the embedding, and of the head."""
    active: int
    """Weights in layers that a token is multiplied by."""
    experts: int
    """Weights of experts that are chosen, all of them."""
    unchosen: float
    """Share of a layer's experts that a token is not sent to; 0 without experts."""
    joined: int
    """Weights that layers put side by side for one product, which a backward pass keeps."""
    layers: int
    hidden: int
    attention: int
    """Of all layers: heads · head_dim, by which a token's scores and their sums cost operations."""
    cached: int
    """Keys and values of one position."""
    kept: int
    """Of a token, what all layers keep for the backward pass (`kept_by_layer`)."""
    kept_by_one: int
    """The same of the layer that keeps most."""

    @classmethod
    def of(cls, config: ModelConfig) -> ModelSize:
        """The sizes of a model that Gradbus's decoder computes."""
        shapes = tensor_shapes(config)
        total, embedding = sum(map(prod, shapes.values())), config.vocab_size * config.hidden_size
        mixtures = [experts for experts in map(config.experts_of, range(config.layers)) if experts]
        of_experts = [3 * config.hidden_size * experts.width for experts in mixtures]
        idle = sum(size * (experts.count - experts.chosen) for size, experts in zip(of_experts, mixtures, strict=True))
        kept = [kept_by_layer(config, layer) for layer in range(config.layers)]
        return cls(
            parameters=total,
            embedding=embedding,
            active=total - embedding * (1 if config.tied else 2) - idle,
            experts=sum(size * experts.count for size, experts in zip(of_experts, mixtures, strict=True)),
            unchosen=1.0 - mixtures[0].chosen / mixtures[0].count if mixtures else 0.0,
            joined=sum(_joined(config, layer) for layer in range(config.layers)),
            layers=config.layers,
            hidden=config.hidden_size,
            attention=config.layers * config.heads * config.head_dim,
            cached=config.layers * config.kv_width,
            kept=sum(kept),
            kept_by_one=max(kept),
        )

    def read_by(self, rows: int) -> float:
        """Weights in layers that `rows` tokens of different texts are multiplied by, if each is sent to experts at random."""
        dense = self.active - self.experts * (1.0 - self.unchosen)
        return dense + self.experts * (1.0 - self.unchosen**rows)

    @property
    def body(self) -> int:
        """Parameters without embedding and head."""
        return self.parameters - self.embedding


def kept_by_layer(config: ModelConfig, layer: int) -> int:
    """Elements of one token that a decoder layer keeps for its backward pass.

    Attention: queries, keys and values before and after they are turned, and the output. Each norm: its input; each product: its input.
    Feed-forward part: gates, ups and their product; with experts, of each chosen expert, and its input and output too.
    """
    hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_width // 2
    kept = 3 * queries + 3 * keys + hidden * (len(config.family.norms) + 2)
    if config.norms.qk is not None and config.norms.qk != "head":
        kept += queries + keys
    experts = config.experts_of(layer)
    if experts is None:
        return kept + 3 * config.intermediate_size
    # Of hidden states: what goes in, what comes out, and that again in the tokens' order.
    chosen = experts.chosen * (3 * hidden + 5 * experts.width)
    return kept + chosen + 3 * experts.shared_width + hidden


def adapter_parameters(config: ModelConfig, lora: LoraSpec) -> int:
    """Elements of the adapters of a model."""
    shapes = [*config.attention_layers, *config.mlp_layers]
    return config.layers * sum(lora.rank * (shape.rows + shape.columns) for shape in shapes if shape.name in lora.target_modules)


def _joined(config: ModelConfig, layer: int) -> int:
    """Elements of the matrices that a layer puts side by side: of queries, keys and values, and of gates and ups."""
    matrices = [*config.attention_layers, *(() if config.experts_of(layer) else config.mlp_layers)]
    return sum(shape.rows * shape.columns for shape in matrices if shape.name in {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})

"""The sizes of a model that memory and time follow from; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from gradbus.formats.model_config import ModelConfig, tensor_shapes
from gradbus.spec import LoraSpec


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer that adapters may stand beside."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class ModelSize:
    """A model's numbers of elements."""

    architecture: str
    """The class of transformers that config.json names."""
    context_length: int
    vocabulary: int
    linears: tuple[Linear, ...]
    """Of a layer, those beside which its family trains adapters; empty: none."""
    parameters: int
    largest: int
    """Of the largest weight."""
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
    kept: tuple[tuple[int, ...], ...]
    """Of a token, the widths of the tensors that each layer keeps for the backward pass (`kept_by_layer`)."""
    stored_width: int = 4
    """Bytes of an element in the files of the weights."""
    own_head: int = 0
    """Of a head that is not the embedding; 0: it is."""

    @classmethod
    def of(cls, config: ModelConfig) -> ModelSize:
        """The sizes of a model that Gradbus's decoder computes."""
        shapes = tensor_shapes(config)
        total, embedding = sum(map(prod, shapes.values())), config.vocab_size * config.hidden_size
        mixtures = [experts for experts in map(config.experts_of, range(config.layers)) if experts]
        of_experts = [3 * config.hidden_size * experts.width for experts in mixtures]
        idle = sum(size * (experts.count - experts.chosen) for size, experts in zip(of_experts, mixtures, strict=True))
        return cls(
            architecture=config.family.architecture,
            context_length=config.context_length,
            vocabulary=config.vocab_size,
            linears=tuple(_linears(config)),
            parameters=total,
            largest=max(map(prod, shapes.values())),
            embedding=embedding,
            own_head=0 if config.tied else embedding,
            active=total - embedding * (1 if config.tied else 2) - idle,
            experts=sum(size * experts.count for size, experts in zip(of_experts, mixtures, strict=True)),
            unchosen=1.0 - mixtures[0].chosen / mixtures[0].count if mixtures else 0.0,
            joined=sum(_joined(config, layer) for layer in range(config.layers)),
            layers=config.layers,
            hidden=config.hidden_size,
            attention=config.layers * config.heads * config.head_dim,
            cached=config.layers * config.kv_width,
            kept=tuple(tuple(kept_by_layer(config, layer)) for layer in range(config.layers)),
        )

    @cached_property
    def kept_by_all(self) -> int:
        """Elements of a token that all layers keep."""
        return sum(map(sum, self.kept))

    @cached_property
    def kept_by_one(self) -> int:
        """The same of the layer that keeps most."""
        return max(map(sum, self.kept))

    def adapted(self, lora: LoraSpec) -> list[Linear]:
        """The linear layers of a decoder layer that have adapters."""
        return [layer for layer in self.linears if layer.name in lora.target_modules]

    def adapter_parameters(self, lora: LoraSpec) -> int:
        """Elements of the adapters of all layers."""
        return self.layers * sum(lora.rank * (layer.inputs + layer.outputs) for layer in self.adapted(lora))

    def read_by(self, rows: int) -> float:
        """Weights in layers that `rows` tokens of different texts are multiplied by, if each is sent to experts at random."""
        dense = self.active - self.experts * (1.0 - self.unchosen)
        return dense + self.experts * (1.0 - self.unchosen**rows)

    @property
    def body(self) -> int:
        """Parameters that hidden states follow from: all but a head of its own."""
        return self.parameters - self.own_head


def _linears(config: ModelConfig) -> Iterator[Linear]:
    family = config.family
    for layer in (*config.attention_layers, *config.mlp_layers):
        if "lora" in family.capabilities and layer.name in family.adapted_layers:
            yield Linear(layer.name, layer.columns, layer.rows)


def kept_by_layer(config: ModelConfig, layer: int) -> Iterator[int]:
    """Widths of the tensors that a decoder layer keeps for its backward pass.

    Attention: queries, keys and values before and after they are turned, and the output. Each norm: its input; each product: its input.
    Feed-forward part: gates, ups and their product; with experts, of each chosen expert, and its input and output too.
    """
    hidden, queries, keys = config.hidden_size, config.heads * config.head_dim, config.kv_width // 2
    yield from (queries + 2 * keys, queries + keys, queries)
    yield from [hidden] * (len(config.family.norms) + 2)
    if config.norms.qk is not None and config.norms.qk != "head":
        yield queries + keys
    experts = config.experts_of(layer)
    if experts is None:
        yield from (2 * config.intermediate_size, config.intermediate_size)
        return
    # Of hidden states: what goes in, what comes out, and that again in the tokens' order.
    yield from [experts.chosen * hidden] * 3
    yield from [experts.chosen * experts.width] * 5
    yield from (3 * experts.shared_width, hidden)


def _joined(config: ModelConfig, layer: int) -> int:
    """Elements of the matrices that a layer puts side by side: of queries, keys and values, and of gates and ups."""
    matrices = [*config.attention_layers, *(() if config.experts_of(layer) else config.mlp_layers)]
    return sum(shape.rows * shape.columns for shape in matrices if shape.name in {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})

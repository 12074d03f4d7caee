"""What config.json says about layers with experts. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.config_fields import misstated, stated_flag, value_of
from gradbus.formats.hf_model import positive
from gradbus.formats.model_families import ExpertFamily
from gradbus.formats.safetensors import MAX_TENSORS

_COUNTS: Final = ("num_local_experts", "num_experts")
"""Names of the number of experts; transformers 5 writes the first."""
_MAX_EXPERTS: Final = 1024
_MAX_INTERMEDIATE: Final = 1 << 19
_MAX_STEP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Feed-forward parts of which a router chooses a few for each token."""

    family: ExpertFamily
    layers: frozenset[int]
    """The decoder layers that have them; the others have one feed-forward part for all tokens."""
    count: int
    chosen: int
    """Experts of each token."""
    width: int
    """Intermediate size of an expert."""
    renormalised: bool
    """Whether the shares of a token's experts are divided by their sum."""


def read_experts(fields: Mapping[str, Any], family: ExpertFamily, layers: int) -> ExpertsConfig:
    """The experts of a model of `family` with this number of layers. Raises ModelError."""
    name = next((name for name in _COUNTS if fields.get(name) is not None), _COUNTS[-1])
    count = positive(fields, name, _MAX_EXPERTS)
    with_experts = frozenset(_layers_with_experts(fields, family, layers))
    if len(with_experts) * count * len(family.matrices) > MAX_TENSORS:
        raise ModelError(f"config.json asks for {count} experts in {len(with_experts)} layers, more than are taken; choose a smaller model")
    return ExpertsConfig(
        family=family,
        layers=with_experts,
        count=count,
        chosen=positive(fields, "num_experts_per_tok", count),
        width=positive(fields, family.width, _MAX_INTERMEDIATE),
        renormalised=stated_flag(family.renormalised, fields),
    )


def expert_shapes(experts: ExpertsConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name in a decoder layer, and shape, of each weight of its experts and their router."""
    family = experts.family
    yield f"{family.block}.{family.router}.weight", (experts.count, hidden)
    gate, up, down = family.matrices
    shapes = {gate: (experts.width, hidden), up: (experts.width, hidden), down: (hidden, experts.width)}
    for expert in range(experts.count):
        for name, shape in shapes.items():
            yield f"{family.block}.experts.{expert}.{name}.weight", shape


def _layers_with_experts(fields: Mapping[str, Any], family: ExpertFamily, layers: int) -> Iterator[int]:
    if not family.has_dense_layers:
        yield from range(layers)
        return
    step, dense = positive(fields, "decoder_sparse_step", _MAX_STEP, default=1), value_of(fields, "mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise misstated("mlp_only_layers", dense)
    yield from (layer for layer in range(layers) if (layer + 1) % step == 0 and layer not in dense)

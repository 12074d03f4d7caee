"""What config.json says about layers with experts. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradbus.errors import ModelError
from gradbus.formats.config_fields import MAX_INTERMEDIATE, misstated, number, stated_flag, value_of
from gradbus.formats.hf_model import positive
from gradbus.formats.model_families import ExpertFamily
from gradbus.formats.safetensors import MAX_TENSORS

_COUNTS: Final = ("num_local_experts", "n_routed_experts", "num_experts")
"""Names of the number of experts; transformers 5 writes the first."""
_MAX_EXPERTS: Final = 1024
SHARED: Final = "shared_experts"
"""Name of the experts that every token goes to, which are one gated linear unit."""
BEST_OF_GROUP: Final = 2
"""Experts whose scores add up to a group's."""
_MAX_FACTOR: Final = 1e6
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
    shared_width: int = 0
    """Intermediate size of all experts together that every token goes to; 0 without them."""
    groups: int = 1
    """Neighbouring experts are in one of so many groups, and a token's are chosen in the best `chosen_groups` of them."""
    chosen_groups: int = 1
    limit: float = 0.0
    """To which fused experts clamp gates and ups."""
    slope: float = 0.0
    """Of the sigmoid in their activation."""
    factor: float = 1.0
    """Of the shares, after they are divided."""


def read_experts(fields: Mapping[str, Any], family: ExpertFamily, layers: int) -> ExpertsConfig:
    """The experts of a model of `family` with this number of layers. Raises ModelError."""
    name = next((name for name in _COUNTS if fields.get(name) is not None), _COUNTS[-1])
    count = positive(fields, name, _MAX_EXPERTS)
    with_experts = frozenset(_layers_with_experts(fields, family, layers))
    if not family.fused and len(with_experts) * count * len(family.matrices) > MAX_TENSORS:
        raise ModelError(f"config.json asks for {count} experts in {len(with_experts)} layers, more than are taken; choose a smaller model")
    width = positive(fields, family.width, MAX_INTERMEDIATE)
    shared = positive(fields, "n_shared_experts", _MAX_EXPERTS) if family.shared else 0
    return ExpertsConfig(
        family=family,
        layers=with_experts,
        count=count,
        chosen=positive(fields, "num_experts_per_tok", count),
        width=width,
        renormalised=stated_flag(family.renormalised, fields),
        shared_width=shared * width,
        **(_groups(fields, count) if family.grouped else {}),
        **(_clamps(fields) if family.fused else {}),
    )


def expert_shapes(experts: ExpertsConfig, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name in a decoder layer, and shape, of each weight of its experts and their router."""
    family = experts.family
    yield f"{family.block}.{family.router}.weight", (experts.count, hidden)
    if family.fused:
        yield f"{family.block}.{family.router}.bias", (experts.count,)
        yield from ((f"{family.block}.experts.{name}", shape) for name, shape in fused_shapes(experts, hidden).items())
        return
    for expert in range(experts.count):
        yield from _unit_shapes(f"{family.block}.experts.{expert}", family, hidden, experts.width)
    if experts.shared_width:
        yield from _unit_shapes(f"{family.block}.{SHARED}", family, hidden, experts.shared_width)


def fused_shapes(experts: ExpertsConfig, hidden: int) -> dict[str, tuple[int, ...]]:
    """Name to shape of the weights of all experts of a layer together, matrices as `[E, in, out]`."""
    count, width = experts.count, experts.width
    return {
        "gate_up_proj": (count, hidden, 2 * width),
        "gate_up_proj_bias": (count, 2 * width),
        "down_proj": (count, width, hidden),
        "down_proj_bias": (count, hidden),
    }


def _unit_shapes(owner: str, family: ExpertFamily, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    gate, up, down = family.matrices
    for name, shape in ((gate, (width, hidden)), (up, (width, hidden)), (down, (hidden, width))):
        yield f"{owner}.{name}.weight", shape


def _clamps(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "limit": number(fields, "swiglu_limit", 7.0, most=_MAX_FACTOR),
        "slope": number(fields, "swiglu_alpha", 1.702, most=_MAX_FACTOR),
    }


def _groups(fields: Mapping[str, Any], count: int) -> dict[str, Any]:
    groups = positive(fields, "n_group", count, default=1)
    chosen = positive(fields, "topk_group", groups, default=1)
    size, wanted = count // groups, positive(fields, "num_experts_per_tok", count)
    if count % groups or size < BEST_OF_GROUP or chosen * size < wanted:
        asked = f"{wanted} of {count} experts in {chosen} of {groups} groups"
        raise ModelError(f"config.json asks for {asked}, which cannot be chosen; save the model again with transformers")
    return {"groups": groups, "chosen_groups": chosen, "factor": number(fields, "routed_scaling_factor", 1.0, most=_MAX_FACTOR)}


def _layers_with_experts(fields: Mapping[str, Any], family: ExpertFamily, layers: int) -> Iterator[int]:
    if family.dense_layers == "none":
        yield from range(layers)
        return
    if family.dense_layers == "first":
        first = value_of(fields, "first_k_dense_replace", 0)
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise misstated("first_k_dense_replace", first)
        yield from range(first, layers)
        return
    step, dense = positive(fields, "decoder_sparse_step", _MAX_STEP, default=1), value_of(fields, "mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise misstated("mlp_only_layers", dense)
    yield from (layer for layer in sorted(set(range(layers)).difference(dense)) if (layer + 1) % step == 0)

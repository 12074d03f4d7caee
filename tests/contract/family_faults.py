"""Faults to plant in a decoder: the contract of model families must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from gradbus.formats.rope_config import RopeConfig
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.layer_parts import NORMS, turn_of
from gradbus_kernels.models.mixture.experts import MixtureOfExperts
from gradbus_kernels.models.rotary import inverse_frequencies, query_scales
from gradbus_kernels.operators import Softcapped


@dataclass(frozen=True)
class Fault:
    """A fault of a decoder, and a family whose contract must find it."""

    model_type: str
    plant: Callable[[CausalLM], None]


def _attentions(model: CausalLM) -> list:
    return [layer.self_attn for layer in model.model.layers]


def _norm_after_rotation(model: CausalLM) -> None:
    for attention in _attentions(model):
        turn, normed = attention._turn, attention._normed

        def turned(qkv, rotation, key_heads, turn=turn, normed=normed):
            parts = turn(qkv, rotation, key_heads)
            return torch.split(normed(torch.cat(parts, dim=1)), [part.shape[1] for part in parts], dim=1)

        attention._turn, attention._normed = turned, lambda qkv: qkv
        attention._turned = attention._normed_and_turned  # not both in one pass


def _scale_of_narrow_heads(model: CausalLM) -> None:
    for attention in _attentions(model):
        attention.scale = (model.config.hidden_size // model.config.heads) ** -0.5


def _windows_off_by_one(model: CausalLM) -> None:
    for attention in _attentions(model):
        attention.window = attention.window and attention.window + 1


def _rope_everywhere(model: CausalLM) -> None:
    config = model.config
    with_rope = next(number for number, rope in enumerate(config.ropes) if rope is not None)
    for attention in _attentions(model):
        attention._turn = turn_of(config, with_rope)


def _one_rope(model: CausalLM) -> None:
    of_layer = model.model._rotations._of_layer
    model.model._rotations._of_layer = [of_layer[0]] * len(of_layer)


def _halves_for_neighbours(model: CausalLM) -> None:
    for attention in _attentions(model):
        attention._turn.args[0].copy_(torch.arange(model.config.head_dim))


def _norms(kind: str) -> Callable[[CausalLM], None]:
    def plant(model: CausalLM) -> None:
        for module in model.modules():
            if type(module).__name__ == "_Norm":
                module._normed = NORMS[kind]

    return plant


def _norms_before(model: CausalLM) -> None:
    for layer in model.model.layers:
        layer._norms = [layer._norms[1], layer._norms[0], layer._norms[3], layer._norms[2]]


def _unscaled_embeddings(model: CausalLM) -> None:
    model.model._scaled_embeddings = lambda hidden: hidden


def _unscaled_residuals(model: CausalLM) -> None:
    for layer in model.model.layers:
        layer._residual = 1.0


def _gates_and_ups_swapped(model: CausalLM) -> None:
    for layer in model.model.layers:
        gated = layer.mlp._gated
        layer.mlp._gated = lambda gate_up, gated=gated: gated(torch.cat(gate_up.chunk(2, dim=-1)[::-1], dim=-1))


def _silu_for_gelu(model: CausalLM) -> None:
    for layer in model.model.layers:
        layer.mlp._gated = lambda gate_up: torch.nn.functional.silu(gate_up.chunk(2, -1)[0]) * gate_up.chunk(2, -1)[1]


def _whole_heads_turned(model: CausalLM) -> None:
    rotations = model.model._rotations
    rotations._kinds = [(frequencies.masked_fill(frequencies == 0.0, 0.3), factor) for frequencies, factor in rotations._kinds]


def _scores_unbounded(model: CausalLM) -> None:
    for attention in _attentions(model):
        attention.scale = attention.scale.value


def _scores_bounded_before_the_scale(model: CausalLM) -> None:
    for attention in _attentions(model):
        scale, softcap = attention.scale
        attention.scale = Softcapped(scale, softcap * scale)


def _bounds_swapped(model: CausalLM) -> None:
    multipliers = model.config.multipliers
    swapped = multipliers._replace(scores_softcap=multipliers.logits_softcap, logits_softcap=multipliers.scores_softcap)
    model.config = replace(model.config, multipliers=swapped)


def _logits_unbounded(model: CausalLM) -> None:
    model.config = replace(model.config, multipliers=model.config.multipliers._replace(logits_softcap=0.0))


def _temperature_before_the_bound(model: CausalLM) -> None:
    tempered = model.tempered
    model.tempered = lambda temperature: Softcapped(temperature, tempered(temperature).softcap * temperature)


def _frequencies_without_factors(model: CausalLM) -> None:
    rope = replace(model.config.ropes[0], kind="default", factors=())
    rotations = model.model._rotations
    rotations._kinds = [(inverse_frequencies(rope, model.config.head_dim), factor) for _, factor in rotations._kinds]


def _rotation_without_its_factor(model: CausalLM) -> None:
    rotations = model.model._rotations
    rotations._kinds = [(frequencies, 1.0) for frequencies, _ in rotations._kinds]


def _rest_scaled_too(model: CausalLM) -> None:
    rotations = model.model._rotations
    rotations._kinds = [(frequencies, float(factors[0])) for frequencies, factors in rotations._kinds]


def _query_scales(scales: Callable[[RopeConfig, Tensor], Tensor]) -> Callable[[CausalLM], None]:
    def plant(model: CausalLM) -> None:
        model.model._rotations._query_scales = [partial(scales, model.config.ropes[0])]

    return plant


def _mixtures(model: CausalLM) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


def _experts_rotated(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.experts._modules = dict(enumerate([*list(mixture.experts)[1:], mixture.experts[0]]))


def _gates_and_ups_of_experts_swapped(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        gate, up, down = mixture.experts._matrices
        mixture.experts._matrices = up, gate, down


def _shares_as_they_are(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.routing._shared_out = lambda shares: shares


def _one_expert_fewer(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.routing._experts = replace(mixture.routing._experts, chosen=mixture.routing._experts.chosen - 1)


def _uncorrected(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.routing.correction = None


def _corrected_shares(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        scores, correction = mixture.routing._scores, mixture.routing.correction
        mixture.routing._scores = lambda logits, scores=scores, correction=correction: scores(logits) + correction
        mixture.routing.correction = None


def _no_groups(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.routing._experts = replace(mixture.routing._experts, groups=1, chosen_groups=1)


def _ignored_sinks(model: CausalLM) -> None:
    for attention in _attentions(model):
        attention._attended = attention._without_sinks


def _gates_in_the_first_half(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        gated = mixture.experts._gated
        mixture.experts._gated = lambda rows, gated=gated: gated(rows.unflatten(1, (2, -1)).transpose(1, 2).flatten(1))


def _unclamped(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.experts._gated.keywords["limit"] = 1e4


def _softmax_before_the_choice(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.routing._scores, mixture.routing._shared_out = lambda logits: logits.softmax(-1), lambda shares: shares


def _not_shared(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture.shared_experts = None


FAULTS: Final[Mapping[str, Fault]] = {
    "queries and keys are normalised after they are turned": Fault("qwen3", _norm_after_rotation),
    "head_dim is ignored": Fault("qwen3", _scale_of_narrow_heads),
    "a window is off by one": Fault("mistral", _windows_off_by_one),
    "layers without rotary embedding have one": Fault("smollm3", _rope_everywhere),
    "layers with a window have the others' rotary embedding": Fault("gemma3_text", _one_rope),
    "pairs are halves instead of neighbours": Fault("glm4", _halves_for_neighbours),
    "elements are turned that should not be": Fault("phi3", _whole_heads_turned),
    "longrope's factors of frequencies are ignored": Fault("phi3", _frequencies_without_factors),
    "longrope's factor of cosines and sines is ignored": Fault("phi3", _rotation_without_its_factor),
    "longrope scales elements that are not turned": Fault("phi3", _rest_scaled_too),
    "queries do not grow with their position": Fault("ministral3", _query_scales(lambda _, positions: torch.ones_like(positions))),
    "queries grow smoothly, not in steps": Fault(
        "ministral3", _query_scales(lambda rope, positions: 1.0 + rope.query_beta * torch.log1p(positions / 16.0))
    ),
    "queries grow one step late": Fault(
        "ministral3", _query_scales(lambda rope, positions: query_scales(rope, (positions - 1.0).clamp(min=0.0)))
    ),
    "the offset of norms is dropped": Fault("gemma3_text", _norms("float32")),
    "norms come before instead of after": Fault("olmo2", _norms_before),
    "embeddings are not scaled": Fault("gemma3_text", _unscaled_embeddings),
    "residuals are not scaled": Fault("granite", _unscaled_residuals),
    "gates and ups are swapped": Fault("phi3", _gates_and_ups_swapped),
    "scores are not bounded": Fault("gemma2", _scores_unbounded),
    "scores are bounded before their scale": Fault("gemma2", _scores_bounded_before_the_scale),
    "logits are not bounded": Fault("gemma2", _logits_unbounded),
    "logits have the bound of scores": Fault("gemma2", _bounds_swapped),
    "logits are bounded after the temperature": Fault("gemma2", _temperature_before_the_bound),
    "experts are in another order": Fault("qwen3_moe", _experts_rotated),
    "gates and ups of experts are swapped": Fault("mixtral", _gates_and_ups_of_experts_swapped),
    "shares are not renormalised": Fault("qwen3_moe", _shares_as_they_are),
    "a token has an expert fewer": Fault("qwen3_moe", _one_expert_fewer),
    "sinks are ignored": Fault("gpt_oss", _ignored_sinks),
    "gates are the first half": Fault("gpt_oss", _gates_in_the_first_half),
    "gates and ups are not clamped": Fault("gpt_oss", _unclamped),
    "the softmax comes before the choice": Fault("gpt_oss", _softmax_before_the_choice),
    "scores are not corrected": Fault("glm4_moe", _uncorrected),
    "shares are corrected too": Fault("glm4_moe", _corrected_shares),
    "experts are chosen in all groups": Fault("glm4_moe", _no_groups),
    "shared experts are left out": Fault("glm4_moe", _not_shared),
    "silu stands in for gelu": Fault("gemma3_text", _silu_for_gelu),
}
"""What the contract must find, by far more than its bound."""

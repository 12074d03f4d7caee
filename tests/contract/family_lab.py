"""Tiny models of every family with random weights, as `save_pretrained` writes them, what transformers computes of them, and faults."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gradbus.formats.rope_config import RopeConfig
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.experts import MixtureOfExperts
from gradbus_kernels.models.layer_parts import NORMS, turn_of
from gradbus_kernels.models.rotary import inverse_frequencies, query_scales
from gradbus_kernels.operators import Softcapped

VOCABULARY: Final = 256
SIZES: Final[Mapping[str, object]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
"""All heads together are wider than the hidden state, and there are fewer key heads than query heads."""
_LOCAL_FIRST: Final = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_EXPERTS: Final = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True}

FAMILIES: Final[Mapping[str, Mapping[str, object]]] = {
    "llama": {"mlp_bias": True, "attention_bias": True},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {},
    "mistral": {"sliding_window": 6},
    "ministral3": {
        "sliding_window": 40,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 16.0,
            "original_max_position_embeddings": 16,
            "max_position_embeddings": 256,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.4,
        },
    },
    "mixtral": {"sliding_window": 6, "num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen3_moe": _EXPERTS | {"mlp_only_layers": [0], "decoder_sparse_step": 1},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "seed_oss": {"attention_out_bias": True, "mlp_bias": True},
    "olmo2": {},
    "olmo3": _LOCAL_FIRST,
    "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
    "gemma3_text": _LOCAL_FIRST | {"query_pre_attn_scalar": 20},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.125, "logits_scaling": 4.0},
    "phi3": {
        "sliding_window": 6,
        "partial_rotary_factor": 0.75,
        "head_dim": 16,
        "original_max_position_embeddings": 128,
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.2, 1.7, 2.0, 2.9, 4.0],
            "long_factor": [1.0, 1.5, 2.5, 6.0, 20.0, 40.0],
        },
    },
    "glm4": {},
}
"""By `model_type`, what the odd model of a family has beside SIZES. To add a family to the contract, add a line."""
PLAIN: Final[Mapping[str, Mapping[str, object]]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": _EXPERTS | {"norm_topk_prob": False},
    "granite": {"attention_multiplier": 0.2, "logits_scaling": 2.0},
}
"""The same for the plain model, whose embeddings are tied: what the embedded engine computes, in every family."""


@dataclass(frozen=True)
class Row:
    """A prompt and a response."""

    prompt_ids: np.ndarray
    token_ids: np.ndarray


def make_model(model_type: str, **changes: object) -> PreTrainedModel:
    """A model with random weights, biases and norms, so that none of them can be left out unnoticed."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **copy.deepcopy({**SIZES, **changes}))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, float(parameter.mean()), 0.2)
    return model


def save(model: PreTrainedModel, folder: Path) -> Path:
    """Writes a folder as a user has it."""
    model.save_pretrained(folder)
    Tokenizer(WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    return folder


def rows() -> list[Row]:
    """Groups that share a prompt, short and long ones, and rows that share nothing."""
    draw = np.random.default_rng(0).integers
    shared, long = (draw(0, VOCABULARY, size).astype(np.int32) for size in (9, 70))
    found = [Row(shared, draw(0, VOCABULARY, size).astype(np.int32)) for size in (1, 3, 6)]
    found += [Row(long, draw(0, VOCABULARY, size).astype(np.int32)) for size in (40, 33)]
    return [*found, Row(shared[:1], found[0].token_ids), Row(draw(0, VOCABULARY, 21).astype(np.int32), long[:11])]


def theirs(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model by transformers, eager."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    model.config._experts_implementation = "eager"
    return model


def logprobs_of(model: PreTrainedModel, sequences: Sequence[Row], temperature: float) -> Tensor:
    """Log-probabilities of the response tokens by transformers, each sequence alone and whole."""
    found = []
    for row in sequences:
        ids = torch.from_numpy(np.concatenate((row.prompt_ids, row.token_ids))).long()[None]
        logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1]
        table = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(-1)
        found.append(table.gather(1, ids[0, len(row.prompt_ids) :, None])[:, 0])
    return torch.cat(found)


def stored(model: PreTrainedModel, folder: Path, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors in the place of the model's parameters, under the names and in the shapes that `save_pretrained` gives these."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, tensor in zip(twin.parameters(), tensors, strict=True):
            parameter.copy_(tensor)
    twin.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


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
    model.config = dataclasses.replace(model.config, multipliers=swapped)


def _logits_unbounded(model: CausalLM) -> None:
    model.config = dataclasses.replace(model.config, multipliers=model.config.multipliers._replace(logits_softcap=0.0))


def _temperature_before_the_bound(model: CausalLM) -> None:
    tempered = model.tempered
    model.tempered = lambda temperature: Softcapped(temperature, tempered(temperature).softcap * temperature)


def _frequencies_without_factors(model: CausalLM) -> None:
    rope = dataclasses.replace(model.config.ropes[0], kind="default", factors=())
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
        mixture.experts = torch.nn.ModuleList([*mixture.experts[1:], mixture.experts[0]])


def _gates_and_ups_of_experts_swapped(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        gate, up, down = mixture._matrices
        mixture._matrices = up, gate, down


def _shares_as_they_are(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture._routing._shared_out = lambda shares: shares


def _one_expert_fewer(model: CausalLM) -> None:
    for mixture in _mixtures(model):
        mixture._routing._chosen -= 1


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
    "silu stands in for gelu": Fault("gemma3_text", _silu_for_gelu),
}
"""What the contract must find, by far more than its bound."""

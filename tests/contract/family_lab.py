"""Tiny models of every family with random weights, as `save_pretrained` writes them, what transformers computes of them, and faults."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from gradbus.formats.frozen import CORRECTION, frozen_names
from gradbus.formats.hf_model import read_family
from gradbus_kernels.models.causal_lm import load_causal_lm, packed_logprobs

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
_YARN: Final = {"rope_type": "yarn", "rope_theta": 5e3, "factor": 4.0, "truncate": False, "original_max_position_embeddings": 32}
_GLM_EXPERTS: Final = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "routed_scaling_factor": 1.5}
_GROWING_QUERIES: Final = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 16.0,
    "original_max_position_embeddings": 16,
    "max_position_embeddings": 256,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}
_WITH_IMAGES: Final = "mistral3"
_VISION: Final = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "image_size": 16,
    "patch_size": 8,
}

FAMILIES: Final[Mapping[str, Mapping[str, object]]] = {
    "llama": {"mlp_bias": True, "attention_bias": True},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {},
    "mistral": {"sliding_window": 6},
    "ministral3": {"sliding_window": 40, "rope_parameters": _GROWING_QUERIES},
    "mistral3": {"rope_parameters": _GROWING_QUERIES},
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
    "gpt_oss": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 6, "swiglu_limit": 0.5, "rope_parameters": _YARN},
    "glm4_moe": _GLM_EXPERTS | {"use_qk_norm": True, "attention_bias": True, "n_group": 4, "topk_group": 2, "n_shared_experts": 2},
}
"""By `model_type`, what the odd model of a family has beside SIZES. To add a family to the contract, add a line."""
PLAIN: Final[Mapping[str, Mapping[str, object]]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": _GLM_EXPERTS | {"norm_topk_prob": False, "first_k_dense_replace": 0},
    "qwen3_moe": _EXPERTS | {"norm_topk_prob": False},
    "granite": {"attention_multiplier": 0.2, "logits_scaling": 2.0},
}
"""The same for the plain model, whose embeddings are tied: what the embedded engine computes, in every family."""


@dataclass(frozen=True)
class Row:
    """A prompt and a response."""

    prompt_ids: np.ndarray
    token_ids: np.ndarray


def new_model(model_type: str, fields: Mapping[str, object]) -> PreTrainedModel:
    """A model as transformers makes it; one with images has a tiny vision tower beside the text model that `fields` describe."""
    if model_type != _WITH_IMAGES:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields), dtype=torch.float32)
    text = {"model_type": "ministral3", **fields}
    config = AutoConfig.for_model(
        model_type, text_config=text, vision_config=_VISION, tie_word_embeddings=fields.get("tie_word_embeddings", False)
    )
    return AutoModelForImageTextToText.from_config(config, dtype=torch.float32)


def text_model(model: PreTrainedModel) -> torch.nn.Module:
    """Embedding, layers and last norm."""
    return getattr(model.model, "language_model", model.model)


def make_model(model_type: str, **changes: object) -> PreTrainedModel:
    """A model with random weights, biases and norms, so that none of them can be left out unnoticed."""
    torch.manual_seed(0)
    model = new_model(model_type, copy.deepcopy({**SIZES, **changes}))
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "sinks")):
            torch.nn.init.normal_(parameter, float(parameter.mean()), 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith(CORRECTION):
            torch.nn.init.normal_(buffer, 0.0, 0.1)
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
    loader = AutoModelForImageTextToText if read_family(folder).model_type == _WITH_IMAGES else AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
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


def gradients_of(loss: Tensor, model: PreTrainedModel) -> tuple[Tensor, ...]:
    """Of all parameters, in their order; zeros for those of a vision tower, which no text passes."""
    return torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, materialize_grads=True)


def stored(model: PreTrainedModel, folder: Path, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Tensors in the place of the model's parameters, under the names and in the shapes that `save_pretrained` gives these."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, tensor in zip(twin.parameters(), tensors, strict=True):
            parameter.copy_(tensor)
    twin.save_pretrained(folder)
    return trained(folder)


def trained(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder that runs train."""
    tensors = load_file(folder / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name not in frozen_names(tensors)}


def assert_batch_is_rows_alone(folder: Path, sequences: Sequence[Row]) -> None:
    """What a batch gives for each sequence is what the sequence gives by itself."""
    model = load_causal_lm(folder)
    with torch.no_grad():
        together, _ = packed_logprobs(model, sequences, 0.7)
        alone = torch.cat([packed_logprobs(model, [sequence], 0.7)[0] for sequence in sequences])
    torch.testing.assert_close(together, alone, rtol=0.0, atol=5e-6)


def assert_checkpointing_keeps_bits(folder: Path, sequences: Sequence[Row]) -> None:
    """Gradients of layers that are computed again are those of layers that are not."""
    gradients = []
    for checkpointing in (False, True):
        model = load_causal_lm(folder)
        model.set_checkpointing(checkpointing)
        packed_logprobs(model, sequences, 0.7)[0].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))

"""Causal language models from Hugging Face folders, run on packed sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from gradbus.errors import ModelError
from gradbus.model_folder import MODEL_TYPES
from gradbus_kernels import packed_attention
from gradbus_kernels.packing import TokenSequence, pack
from gradbus_kernels.token_logprobs import token_logprobs

FAMILIES = frozenset(MODEL_TYPES.values())
"""Model types of what may be trained. The forward of each is embedding, decoder layers, norm and a linear head with nothing after it."""


def load_causal_lm(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    """The model in `folder` (config.json, safetensors), in evaluation mode. No code of the folder is run.

    Raises ModelError when the folder cannot be read or its architecture is none of `FAMILIES`.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is not a model folder: config.json is missing; give a folder in Hugging Face layout")
    packed_attention.register()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        _check_family(config.model_type, folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            attn_implementation=packed_attention.IMPLEMENTATION,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, StrictDataclassError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} cannot be loaded ({error}); check config.json and the safetensors files") from error
    model, report = loaded
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:5])
        raise ModelError(f"the weights in {folder} lack {missing}; copy the whole model folder")
    return model.to(device).eval()


def _check_family(model_type: str, folder: Path) -> None:
    if model_type not in FAMILIES:
        raise ModelError(f"architecture {model_type!r} in {folder} is not supported; use one of {', '.join(sorted(FAMILIES))}")


def export_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A snapshot of the parameters under their Hugging Face names: contiguous float32 on the CPU.

    A tied head is left out: it is the embedding.
    """
    return {name: parameter.detach().to("cpu", torch.float32, copy=True).contiguous() for name, parameter in model.named_parameters()}


def load_weights(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies `tensors` into the model in place. Raises ModelError unless names and shapes are exactly the model's."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != tensors.keys():
        differing = ", ".join(sorted(parameters.keys() ^ tensors.keys())[:5])
        raise ModelError(
            f"the weights are of another model: tensors that only one of them has: {differing}; start from the run's own model"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{tuple(tensors[name].shape)}, the model wants {tuple(parameter.shape)}"
                raise ModelError(f"tensor {name} has shape {shapes}; start from the run's own model")
            parameter.copy_(tensors[name])


def packed_logprobs(model: Any, sequences: Sequence[TokenSequence], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of all response tokens, float32 [R] each, in order of sequence and position.

    One forward pass over the sequences packed without padding; only positions that predict a response token meet
    the head. `model` comes from `load_causal_lm`; logits are divided by `temperature`.
    """
    batch = pack(sequences, model.device)
    hidden = model.base_model(
        input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, packed_runs=batch.runs
    ).last_hidden_state[0]
    head = model.get_output_embeddings().weight
    return token_logprobs(hidden.index_select(0, batch.selected).float(), head.float(), batch.targets, temperature)

"""Causal language models from Hugging Face folders, run on packed sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch

from gradbus.errors import ModelError
from gradbus.formats.model_config import read_model_config
from gradbus.formats.model_weights import check_weights
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.files import stored_tensors
from gradbus_kernels.models.loading import loading
from gradbus_kernels.models.packing import TokenSequence, pack
from gradbus_kernels.operators import linear_logprob

_HEAD = "lm_head.weight"
_EMBEDDING = "embed_tokens.weight"
_PART_ELEMENTS = 1 << 20


def load_causal_lm(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> CausalLM:
    """The model in `folder` (config.json, safetensors), its weights cast to `dtype`. No code of the folder is run.

    Tensors that older folders store and no forward reads are skipped. Raises ModelError when the folder cannot be read, asks for a
    feature that the decoder does not compute, holds the weights of another model or weights that are not finite, or when memory is short.
    """
    torch.empty(0, device=device)  # a device that is not here is no fault of the model
    with loading():
        model = empty_causal_lm(folder, dtype).to_empty(device=device)
        _fill(model, folder)
        return model


def empty_causal_lm(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    """The model in `folder` without its weights, on the device `meta`. Raises ModelError for what its configuration and headers show."""
    with loading():
        config = read_model_config(folder)
        check_weights(folder, config)
        with torch.device("meta"):
            model = CausalLM(config)
        return model.to(dtype)


def checked_tensors(model: CausalLM, folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The stored weights of the model, each with its name, one at a time. Raises ModelError for weights that are not the model's."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    dtype, embedding = model.head_weight.dtype, f"model.{_EMBEDDING}"
    seen: set[str] = set()
    tied: dict[str, torch.Tensor] = {}
    for name, tensor in stored_tensors(folder):
        if name in shapes:
            _check_stored(name, tensor, shapes[name])
            yield name, tensor
            seen.add(name)
        if name == embedding or (name == _HEAD and name not in shapes):
            tied[name] = tensor
    if missing := shapes.keys() - seen:
        raise ModelError(f"the weights lack {', '.join(sorted(missing)[:5])}; copy the whole model folder")
    if _HEAD in tied and not _equal(tied[_HEAD], tied[embedding], dtype):
        raise ModelError("the weights have a head of their own but config.json ties it; set tie_word_embeddings to false there")


@torch.no_grad()
def _fill(model: CausalLM, folder: Path) -> None:
    parameters = dict(model.named_parameters())
    for name, tensor in checked_tensors(model, folder):
        parameters[name].copy_(tensor)


def _equal(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    return one.shape == other.shape and all(
        torch.equal(left.to(dtype), right.to(dtype)) for left, right in zip(_parts(one), _parts(other), strict=True)
    )


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A stored tensor in parts: what is computed of one then takes no memory of its size."""
    return torch.split(tensor.flatten(), _PART_ELEMENTS)


def _check_stored(name: str, tensor: torch.Tensor, shape: torch.Size) -> None:
    if tensor.shape != shape:
        shapes = f"{tuple(tensor.shape)}, config.json asks for {tuple(shape)}"
        raise ModelError(f"tensor {name} has shape {shapes}; take config.json and weights that belong together")
    if not tensor.is_floating_point():
        raise ModelError(f"tensor {name} holds {tensor.dtype}; take weights that are not quantised")
    if not all(part.isfinite().all() for part in _parts(tensor)):
        raise ModelError(f"tensor {name} holds values that are not finite (NaN or infinity); save or train the model again")


def snapshot(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Copies: contiguous float32 on the CPU."""
    return {name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous() for name, tensor in tensors}


def load_weights(parameters: Mapping[str, torch.nn.Parameter], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copies `tensors` into the parameters of their names in place. Raises ModelError unless names and shapes are exactly theirs."""
    check_shapes({name: parameter.shape for name, parameter in parameters.items()}, tensors)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def check_shapes(shapes: Mapping[str, torch.Size], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ModelError unless `tensors` have these names and shapes."""
    if shapes.keys() != tensors.keys():
        differing = ", ".join(sorted(shapes.keys() ^ tensors.keys())[:5])
        raise ModelError(
            f"the weights are of another model: tensors that only one of them has: {differing}; start from the run's own model"
        )
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            found = f"{tuple(tensors[name].shape)}, the model expects {tuple(shape)}"
            raise ModelError(f"tensor {name} has shape {found}; start from the run's own model")


def packed_logprobs(model: CausalLM, sequences: Sequence[TokenSequence], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of all response tokens, float32 [R] each, in order of sequence and position.

    Logits are divided by `temperature`. NaN in the weights comes out as NaN.
    """
    found = linear_logprob(*head_inputs(model, sequences), temperature=temperature, allow_nan=True)
    return found.logprobs, cast("torch.Tensor", found.entropies)


def head_inputs(model: CausalLM, sequences: Sequence[TokenSequence]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs of the operators on the LM head: hidden states [R, H] and head [V, H] in the model's dtype, response tokens int64 [R].

    One forward pass over the sequences, packed without padding; hidden states are those that predict a response token.
    """
    batch = pack(sequences, model.device)
    hidden: torch.Tensor = model(batch)
    return hidden.index_select(0, batch.selected), model.head_weight, batch.targets

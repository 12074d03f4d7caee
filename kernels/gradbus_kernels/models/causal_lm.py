"""Causal language models from Hugging Face folders, run on packed sequences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import nn

from gradbus.errors import ModelError
from gradbus.formats.hf_model import transformers_family
from gradbus.formats.model_config import read_model_config
from gradbus.formats.model_weights import check_weights, refuse_other_head
from gradbus.formats.transformers_families import TransformersFamily
from gradbus.memory.resident import importing
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.files import are_equal, check_complete, check_stored, stored_tensors
from gradbus_kernels.models.language_model import LanguageModel
from gradbus_kernels.models.loading import loading
from gradbus_kernels.models.mixture.experts import MixtureOfExperts
from gradbus_kernels.models.mixture.routing import read_corrections
from gradbus_kernels.models.packing import TokenSequence
from gradbus_kernels.operators import linear_logprob

_Model = TypeVar("_Model", bound=nn.Module)


def load_causal_lm(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LanguageModel:
    """The model in `folder` (config.json, safetensors), its weights cast to `dtype`. No code of the folder is run.

    It is Gradbus's decoder for the families of `MODEL_FAMILIES`, and transformers' model for those of `TRANSFORMERS_FAMILIES`.

    Tensors that older folders store and no forward reads are skipped. Raises ModelError when the folder cannot be read, asks for a
    feature that the decoder does not compute, holds the weights of another model or weights that are not finite, or when memory is short.
    """
    torch.empty(0, device=device)  # a device that is not here is no fault of the model
    with loading():
        family = transformers_family(folder)
        if family is not None:
            return _load_by_transformers(folder, family, dtype, device)
        model = empty_causal_lm(folder, dtype).to_empty(device=device)
        _fill(model, folder)
        return correct_routers(model, folder, torch.device(device))


def empty_causal_lm(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    """Gradbus's decoder without its weights, on the device `meta`. Raises ModelError for what configuration and headers show."""
    with loading():
        config = read_model_config(folder)
        check_weights(folder, config)
        with torch.device("meta"):
            model = CausalLM(config)
        return model.to(dtype)


def checked_tensors(model: CausalLM, folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The stored weights of the model, each with its name, one at a time. Raises ModelError for weights that are not the model's."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    dtype = model.head_weight.dtype
    embedding, head = model.config.family.embedding, model.config.family.head
    seen: set[str] = set()
    tied: dict[str, torch.Tensor] = {}
    for name, tensor in stored_tensors(folder):
        if name in shapes:
            check_stored(name, tensor, shapes[name])
            yield name, tensor
            seen.add(name)
        if model.config.tied and name in {embedding, head}:
            tied[name] = tensor
    check_complete(shapes.keys() - seen)
    if head in tied and not are_equal(tied[head], tied[embedding], dtype):
        refuse_other_head()


def correct_routers(model: _Model, folder: Path, device: torch.device) -> _Model:
    """The same model, whose routers have what they add to their scores. Raises ModelError."""
    routings = {name: module.routing for name, module in model.named_modules() if isinstance(module, MixtureOfExperts)}
    read_corrections(folder, routings, device)
    return model


def _load_by_transformers(folder: Path, family: TransformersFamily, dtype: torch.dtype, device: str) -> LanguageModel:
    if find_spec("transformers") is None:
        raise ModelError(f"{family.architecture} is computed by transformers, which is not installed here; install gradbus[families]")
    with importing("gradbus_kernels.models.fallback.loading"):
        from gradbus_kernels.models.fallback.loading import load_transformers_lm  # noqa: PLC0415 - transformers takes seconds and is for these families alone

    return load_transformers_lm(folder, family, dtype, device)


@torch.no_grad()
def _fill(model: CausalLM, folder: Path) -> None:
    parameters = dict(model.named_parameters())
    for name, tensor in checked_tensors(model, folder):
        parameters[name].copy_(tensor)


def snapshot(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Copies: contiguous float32 on the CPU."""
    return {name: tensor.detach().to("cpu", torch.float32, copy=True).contiguous() for name, tensor in tensors}


def load_weights(parameters: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
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


def packed_logprobs(model: LanguageModel, sequences: Sequence[TokenSequence], temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of all response tokens, float32 [R] each, in order of sequence and position.

    Logits are divided by `temperature`. NaN in the weights comes out as NaN.
    """
    found = linear_logprob(*head_inputs(model, sequences), temperature=model.tempered(temperature), allow_nan=True)
    return found.logprobs, cast("torch.Tensor", found.entropies)


def head_inputs(model: LanguageModel, sequences: Sequence[TokenSequence]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs of the operators on the LM head: hidden states [R, H] and head [V, H] in the model's dtype, response tokens int64 [R].

    One forward pass over the sequences, packed without padding where the model allows it. Hidden states are those that predict a token.
    """
    batch = model.pack(sequences)
    hidden: torch.Tensor = model(batch)
    return hidden.index_select(0, batch.selected), model.head_weight, batch.targets

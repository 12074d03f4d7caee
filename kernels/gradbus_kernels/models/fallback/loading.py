"""Makes transformers' model from a folder, whose code is never run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from gradbus.errors import ModelError, first_line
from gradbus.formats.hf_model import CONFIG, positive, read_object, stated_context
from gradbus.formats.model_weights import HEADS, read_name_plan, refuse_other_head
from gradbus.formats.transformers_families import TransformersFamily
from gradbus_kernels.models.embedding import Embedding
from gradbus_kernels.models.fallback.attention import PACKED_ATTENTION
from gradbus_kernels.models.fallback.configuration import text_configuration
from gradbus_kernels.models.fallback.forward_check import check_forward
from gradbus_kernels.models.fallback.model import TransformersLM
from gradbus_kernels.models.fallback.module_limit import at_most_parameters
from gradbus_kernels.models.fallback.stored_names import StoredNames, stored_names
from gradbus_kernels.models.files import check_complete, check_stored, stored_tensors


def load_transformers_lm(folder: Path, family: TransformersFamily, dtype: torch.dtype, device: str) -> TransformersLM:
    """The model in `folder`, its weights cast to `dtype`. All names and shapes are checked before anything is allocated.

    The model is compared with transformers' own forward pass (`check_forward`). Raises ModelError.
    """
    # By default cuDNN rounds the factors of a convolution in float32 to TF32, while products of matrices are exact.
    torch.backends.cudnn.allow_tf32 = False
    config = read_object(folder / CONFIG)
    packed, stated, plan = family.is_packed(config), family.text_config(config), read_name_plan(folder)
    with _quiet():
        with at_most_parameters(len(plan.trained) + len(plan.frozen)), _building(stated):
            network = _without_memory(text_configuration(folder, family), packed, dtype)
        _check_sizes(network, stated)
        names = stored_names(network, {name: tensor.shape for name, tensor in plan.trained.items()}, plan.frozen)
        network.to_empty(device=device)
        network.tie_weights()
        _fill(network, names, folder)
        model = TransformersLM(family, network, names, packed)
        check_forward(model)
    return model


@contextmanager
def _building(stated: Mapping[str, Any]) -> Iterator[None]:
    """Raises ModelError for what transformers raises for a configuration that it does not take, with the fields that may be the cause."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        wrong = error.args[:1] if isinstance(error, KeyError) else ()
        fields = ", ".join(name for name, value in stated.items() if isinstance(value, str) and (value,) == wrong)
        raise ModelError(
            f"transformers {transformers.__version__} makes no model of config.json ({type(error).__name__}: {first_line(error)}); "
            f"correct {fields or 'the field'} there, or take the model's own file"
        ) from error


def _without_memory(config: PreTrainedConfig, packed: bool, dtype: torch.dtype) -> Any:
    how = {"attn_implementation": PACKED_ATTENTION} if packed else {}
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False, **how).eval()  # type: ignore[no-untyped-call]
    table = network.get_input_embeddings()
    if type(table) is nn.Embedding and table.padding_idx is None:
        table.__class__ = Embedding  # its gradient alone is computed otherwise
    head = network.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None:
        raise ModelError(f"{type(network).__name__} has a head that is not one matrix, which is not computed; choose another model")
    return network


def _check_sizes(network: Any, stated: Mapping[str, Any]) -> None:
    """Refuses tables that are smaller than the ids and positions that config.json promises; on a GPU a lookup beyond ends the process."""
    vocabulary, context = positive(stated, "vocab_size"), stated_context(stated)
    table, rows = network.get_input_embeddings(), len(network.get_output_embeddings().weight)
    if rows != vocabulary or len(table.weight) < vocabulary:
        raise ModelError(f"config.json states vocab_size = {vocabulary}, and the model has {rows} tokens; state the same under each name")
    positions = [len(module.weight) for module in network.modules() if isinstance(module, nn.Embedding) and module is not table]
    if positions and min(positions) < context:
        raise ModelError(
            f"config.json states a context of {context} tokens, and the model has {min(positions)} positions; "
            "state the model's own max_position_embeddings there"
        )


@torch.no_grad()
def _fill(network: Any, names: StoredNames, folder: Path) -> None:
    tensors = dict(network.named_buffers()) | dict(network.named_parameters())
    frozen = names.frozen_views(tensors)
    places = names.trained_views(tensors) | frozen
    missing, heads = set(places), []
    for name, tensor in stored_tensors(folder, frozen):
        if name in places:
            check_stored(name, tensor, places[name].shape)
            places[name].copy_(tensor)
            missing.discard(name)
        elif name in HEADS:
            heads.append(tensor)
    check_complete(missing)
    head = network.get_output_embeddings().weight
    if any(not torch.equal(tensor.to(head), head) for tensor in heads):
        refuse_other_head()
    _make_other_buffers(network)


def _make_other_buffers(network: Any) -> None:
    """Computes the buffers that no folder stores, such as the frequencies of rotary embeddings, as `from_pretrained` does."""
    stored = network.state_dict().keys()
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        tensor._is_hf_initialized = name in stored
    network.initialize_weights()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' messages, which go to the log otherwise: advice to users, and with an error all of a folder's config.json."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)

"""A model that no rank holds whole: each tensor is read, divided among the ranks and dropped before the next one is read (ZeRO-3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import deepspeed
import torch
from safetensors import safe_open
from torch import nn

from gradbus.errors import ModelError
from gradbus.formats.model_config import read_model_config
from gradbus.formats.model_weights import check_weights
from gradbus_kernels.models.causal_lm import checked_tensors, correct_routers, empty_causal_lm
from gradbus_kernels.models.decoder import CausalLM
from gradbus_kernels.models.loading import loading
from gradbus_kernels.models.reward.model import RewardModel, checked_reward_tensors, empty_reward_model
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

_Result = TypeVar("_Result")
_Model = TypeVar("_Model", CausalLM, RewardModel)


@dataclass(frozen=True, slots=True)
class ModelReader(Generic[_Model]):
    """How models of a kind are read tensor by tensor."""

    empty: Callable[[Path, torch.dtype], _Model]
    """The model without its weights, on the device `meta`."""
    tensors: Callable[[_Model, Path], Iterator[tuple[str, torch.Tensor]]]
    """Its stored weights, each with its name."""


POLICIES: Final = ModelReader(empty_causal_lm, checked_tensors)
REWARD_MODELS: Final = ModelReader(empty_reward_model, checked_reward_tensors)


def agreed(ranks: Ranks, work: Callable[[], _Result]) -> _Result:
    """The result of `work`, which each rank does for itself. Raises ModelError on every rank if it fails so on one of them."""
    found, fault = None, "another rank cannot load the model; see its log"
    try:
        found = work()
    except ModelError as error:
        fault = str(error)
    if not ranks.all_true(found is not None) or found is None:
        raise ModelError(fault)
    return found


def load_shards(reader: ModelReader[_Model], folder: Path, dtype: torch.dtype, config: Mapping[str, Any], ranks: Ranks) -> _Model:
    """The model in `folder`, its weights in `dtype` divided among the ranks. `config` is DeepSpeed's.

    Beside its shard a rank holds one whole tensor. Raises ModelError on every rank if one of them cannot go on.
    """
    model = agreed(ranks, lambda: _without_weights(reader, folder, dtype, ranks.device))
    tensors = reader.tensors(model, folder)
    first: nn.Parameter | None = None
    while entry := agreed(ranks, lambda: _next(tensors)):
        ((name, tensor),) = entry
        weight = nn.Parameter(tensor.to(ranks.device, dtype, copy=True))
        path, _, attribute = model.config.family.own_name(name).rpartition(".")
        model.get_submodule(path).register_parameter(attribute, weight)
        if first is None:
            first = weight
            deepspeed.zero.Init(module=nn.ParameterList([weight]), config_dict_or_path=dict(config), dtype=dtype)
        else:
            first.convert_to_zero_parameters(param_list=[weight])  # type: ignore[attr-defined]
    return model


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """The shape of a parameter, also of one of which this rank holds a part."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def stored_weights(folder: Path, names: Mapping[str, torch.Size]) -> LazyTensors:
    """The tensors of these names as the folder stores them, each read when it is asked for."""
    files = {name: stored.file for name, stored in check_weights(folder, read_model_config(folder)).trained.items() if name in names}

    def read(name: str) -> torch.Tensor:
        with safe_open(files[name], framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
            return tensor

    return LazyTensors({name: names[name] for name in files}, read)


def _without_weights(reader: ModelReader[_Model], folder: Path, dtype: torch.dtype, device: torch.device) -> _Model:
    """The model with what it reads beside its weights, which each rank holds whole: the corrections of routers."""
    with loading():
        return correct_routers(reader.empty(folder, dtype), folder, device)


def _next(tensors: Iterator[tuple[str, torch.Tensor]]) -> tuple[tuple[str, torch.Tensor], ...]:
    """The next tensor; empty after the last one."""
    with loading():
        return tuple(entry for entry in (next(tensors, None),) if entry is not None)

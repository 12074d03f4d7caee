"""What a model folder calls the parameters of transformers' model, and which part of a parameter each stored tensor is.

transformers holds experts fused and renames modules; files have other names, and one tensor for each expert. Its own conversion for
`save_pretrained`, run once over tensors without memory, gives views of the parameters: names, shapes, strides and offsets are the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gradbus.errors import ModelError
from gradbus.formats.frozen import frozen_names
from gradbus.formats.safetensors import refuse_tensors

_PIECES: Final = 4
"""Most pieces for each tensor of a folder: fused experts are cut into gates and ups, and those into experts."""
_PREFIXES: Final = ("model.", "transformer.", "backbone.", "gpt_neox.")


@dataclass(frozen=True, slots=True)
class _View:
    """A part of a parameter or buffer."""

    owner: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class StoredNames:
    """Views of parameters and buffers by the folder's names."""

    trained: Mapping[str, _View]
    """What each version has: parameters, and buffers that stay as they are."""
    frozen: Mapping[str, _View]
    """What the model reads and versions carry along unchanged, such as biases of routers."""

    def trained_views(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Views by the folder's names, given parameters and buffers by transformers' names."""
        return _views(self.trained, tensors)

    def frozen_views(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Views by the folder's names, given parameters and buffers by transformers' names."""
        return _views(self.frozen, tensors)


def stored_names(network: PreTrainedModel, stored: Mapping[str, tuple[int, ...]], frozen: Collection[str]) -> StoredNames:
    """The names for a model without memory, of which the folder stores tensors of these names and shapes to be trained, and frozen ones.

    Raises ModelError unless each tensor to be trained has its place and each place its tensor.
    """
    persistent = network.state_dict().keys()
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in persistent}
    room = _PIECES * (len(stored) + len(frozen))
    views = _reverted(network, dict(network.named_parameters()) | buffers, room)
    renamed = _renaming(views, stored.keys() | set(frozen))
    named = {renamed(name): view for name, view in views.items()}
    untrained = frozen_names(named)
    trained = {name: view for name, view in named.items() if name not in untrained}
    refuse_tensors(trained.keys() & set(frozen), "are trained, and have names of what is not")
    refuse_tensors(named.keys() - stored.keys() - set(frozen), "are missing from the weight files")
    refuse_tensors(stored.keys() - trained.keys(), "have no place in transformers' model and are not known to be frozen")
    misshapen = {name for name, view in trained.items() if view.shape != stored[name]}
    refuse_tensors(misshapen, "have other shapes than config.json asks for")
    return StoredNames(trained, {name: view for name, view in named.items() if name not in trained})


def _views(chosen: Mapping[str, _View], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensors[view.owner].detach().as_strided(view.shape, view.strides, tensors[view.owner].storage_offset() + view.offset)
        for name, view in chosen.items()
    }


class _Strided(Tensor):
    """A tensor whose copies are itself, so that what is made of it stays a view."""

    room = 0
    """Pieces that all tensors of the class together may be cut into."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in {Tensor.contiguous, Tensor.clone}:
            return args[0]
        if func in {torch.chunk, Tensor.chunk}:
            cls.room -= args[1]
            if cls.room < 0:
                raise ModelError("config.json asks for more experts than the weight files have; take files that belong together")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def _reverted(network: PreTrainedModel, tensors: Mapping[str, Tensor], room: int) -> dict[str, _View]:
    """By the names that `save_pretrained` would write, views of the tensors, cut into at most `room` pieces.

    Raises ModelError for more pieces, and for what is no view of one of the tensors.
    """
    kind = type("_Probe", (_Strided,), {"room": room})
    probes: dict[str, Tensor] = {name: tensor.detach().as_subclass(kind) for name, tensor in tensors.items()}
    owners = {probe.untyped_storage()._cdata: name for name, probe in probes.items()}
    found = revert_weight_conversion(network, probes)
    combined = {name for name, probe in found.items() if probe.untyped_storage()._cdata not in owners}
    refuse_tensors(combined, "are combined from several parameters by transformers, which no version can be cut from")
    return {
        name: _View(owners[probe.untyped_storage()._cdata], tuple(probe.shape), probe.stride(), probe.storage_offset())
        for name, probe in found.items()
    }


def _renaming(names: Collection[str], stored: Collection[str]) -> Callable[[str], str]:
    """From the names that transformers writes to those of the folder: the same, or with another beginning."""
    return next((change for change in _changes() if all(change(name) in stored for name in names)), lambda name: name)


def _changes() -> Iterator[Callable[[str], str]]:
    yield lambda name: name
    for prefix in _PREFIXES:
        yield lambda name, prefix=prefix: name.removeprefix(prefix)  # type: ignore[misc]
    yield lambda name: f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name
    yield lambda name: f"language_model.{name}"

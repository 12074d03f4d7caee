"""The check of a model's weights by their headers: nothing of the tensors themselves is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.frozen import frozen_names
from gradbus.formats.hf_model import INDEX, weight_files, weight_map
from gradbus.formats.model_config import ModelConfig, correction_shapes, redundant_shapes, tensor_shapes
from gradbus.formats.safetensors import StoredTensor, check_tensors, read_headers, refuse_tensors

_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class NamePlan:
    """The tensors of every version of a model: the names of its base folder, except tensors that no forward reads."""

    trained: Mapping[str, StoredTensor]
    """Where the folder stores each weight of the decoder, in the order of `tensor_shapes`."""
    frozen: Mapping[str, StoredTensor]
    """Where it stores what no run trains (`is_frozen`), in order of name; a version carries it with the same bits."""


def check_weights(folder: Path, config: ModelConfig) -> NamePlan:
    """The plan of names. Raises ModelError unless the weights are exactly the tensors of a model with `config`, in floating point.

    Beside them there may be frozen tensors, and what older folders store and no forward reads (`redundant_shapes`).
    What routers add to their scores (`correction_shapes`) is frozen, and needed.
    """
    files = weight_files(folder)
    found = read_headers([folder / name for name in files])
    if files != ("model.safetensors",):
        _check_index(folder, found)
    redundant = redundant_shapes(config)
    needed = tensor_shapes(config)
    frozen = {name: found[name] for name in sorted(frozen_names(found))}
    read = {name: tensor for name, tensor in found.items() if name not in frozen}
    corrections = correction_shapes(config)
    check_tensors({name: frozen[name] for name in frozen.keys() & corrections.keys()}, corrections)
    check_tensors(read, needed | {name: redundant[name] for name in read.keys() & redundant.keys()})
    refuse_tensors(
        {name for name, tensor in (read | {name: frozen[name] for name in corrections}).items() if tensor.dtype not in _DTYPES},
        "are quantised or no floating-point numbers",
    )
    return NamePlan({name: found[name] for name in needed}, frozen)


def _check_index(folder: Path, found: dict[str, StoredTensor]) -> None:
    stated = weight_map(folder)
    wrong = {name for name, file in stated.items() if name not in found or found[name].file.name != file}
    if wrong := wrong | (found.keys() - stated.keys()):
        shown = ", ".join(sorted(wrong)[:3])
        raise ModelError(f"{INDEX} and the weight files disagree about {len(wrong)} tensors ({shown}); save the model again")

"""The check of a model's weights by their headers: nothing of the tensors themselves is read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.hf_model import INDEX, weight_files, weight_map
from gradbus.formats.model_config import ModelConfig, redundant_shapes, tensor_shapes
from gradbus.formats.safetensors import StoredTensor, check_tensors, read_headers, refuse_tensors

_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})


def check_weights(folder: Path, config: ModelConfig) -> None:
    """Raises ModelError unless the folder's weights are exactly the tensors of a model with `config`, in floating point.

    Tensors that older folders store beside them (`redundant_shapes`) may be there too.
    """
    files = weight_files(folder)
    found = read_headers([folder / name for name in files])
    if files != ("model.safetensors",):
        _check_index(folder, found)
    redundant = redundant_shapes(config)
    needed = tensor_shapes(config)
    check_tensors(found, needed | {name: redundant[name] for name in found.keys() & redundant.keys()})
    refuse_tensors({name for name, tensor in found.items() if tensor.dtype not in _DTYPES}, "are quantised or no floating-point numbers")


def _check_index(folder: Path, found: dict[str, StoredTensor]) -> None:
    stated = weight_map(folder)
    wrong = {name for name, file in stated.items() if name not in found or found[name].file.name != file}
    if wrong := wrong | (found.keys() - stated.keys()):
        shown = ", ".join(sorted(wrong)[:3])
        raise ModelError(f"{INDEX} and the weight files disagree about {len(wrong)} tensors ({shown}); save the model again")

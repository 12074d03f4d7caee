"""Reads the tensors of a model folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradbus.errors import ModelError
from gradbus.formats.hf_model import checked_file_name, read_object

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the folder's safetensors with its name, one at a time, on the CPU. Raises ModelError."""
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping, only this one method
                    yield name, opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"the weights in {file} cannot be read ({error}); copy or download the file again") from error


def _files(folder: Path) -> list[Path]:
    """The one file, or the shards that the index names."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        raise ModelError(f"{folder} has neither {_WHOLE} nor {_INDEX}; save the model there with `save_pretrained`")
    weight_map = read_object(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{folder / _INDEX} has no weight_map; download or save it again")
    return [folder / checked_file_name(str(name)) for name in sorted(set(map(str, weight_map.values())))]

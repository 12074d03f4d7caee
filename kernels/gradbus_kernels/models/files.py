"""Reads the tensors of a model folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradbus.errors import ModelError, first_line
from gradbus.formats.frozen import is_frozen
from gradbus.formats.hf_model import weight_files


def stored_tensors(folder: Path, read_too: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the folder with its name, one at a time, on the CPU; of frozen ones only `read_too`. Raises ModelError."""
    for file in weight_files(folder):
        try:
            with safe_open(folder / file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping, only this one method
                    if name in read_too or not is_frozen(name):
                        yield name, opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else first_line(error)
            raise ModelError(f"the weights in {file} cannot be read ({reason}); copy or download the file again") from error


def check_stored(name: str, tensor: Tensor, place: Tensor) -> None:
    """Raises ModelError unless a stored tensor fits into its place in a model: its shape, numbers, and all of them finite."""
    if tensor.shape != place.shape:
        shapes = f"{tuple(tensor.shape)}, config.json asks for {tuple(place.shape)}"
        raise ModelError(f"tensor {name} has shape {shapes}; take config.json and weights that belong together")
    if not tensor.is_floating_point():
        raise ModelError(f"tensor {name} holds {tensor.dtype}; take weights that are not quantised")
    if not tensor.isfinite().all():
        raise ModelError(f"tensor {name} holds values that are not finite (NaN or infinity); save or train the model again")

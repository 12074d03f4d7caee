"""Reads the tensors of a model folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Size, Tensor, split

from gradbus.errors import ModelError, first_line
from gradbus.formats.frozen import CORRECTION, frozen_names
from gradbus.formats.hf_model import weight_files
from gradbus.formats.safetensors import read_headers

_PART_ELEMENTS: Final = 1 << 20


def stored_tensors(folder: Path, read_too: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the folder with its name, one at a time, on the CPU; of frozen ones only `read_too`. Raises ModelError."""
    names = read_headers([folder / file for file in weight_files(folder)]).keys()
    yield from _read(folder, (names - frozen_names(names)).union(read_too))


def stored_corrections(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The same for what routers add to their scores, which is frozen."""
    names = read_headers([folder / file for file in weight_files(folder)])
    yield from _read(folder, {name for name in names if name.endswith(f".{CORRECTION}")})


def _read(folder: Path, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    for file in weight_files(folder):
        try:
            with safe_open(folder / file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping, only this one method
                    if name in wanted:
                        yield name, opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else first_line(error)
            raise ModelError(f"the weights in {file} cannot be read ({reason}); copy or download the file again") from error


def check_stored(name: str, tensor: Tensor, shape: Size) -> None:
    """Raises ModelError unless a stored tensor fits into a place of this shape in a model: its numbers are floats, and all finite."""
    if tensor.shape != shape:
        shapes = f"{tuple(tensor.shape)}, config.json asks for {tuple(shape)}"
        raise ModelError(f"tensor {name} has shape {shapes}; take config.json and weights that belong together")
    if not tensor.is_floating_point():
        raise ModelError(f"tensor {name} holds {tensor.dtype}; take weights that are not quantised")
    if not all(part.isfinite().all() for part in parts(tensor)):
        raise ModelError(f"tensor {name} holds values that are not finite (NaN or infinity); save or train the model again")


def check_complete(missing: Collection[str]) -> None:
    """Raises ModelError if places of a model got no stored tensor."""
    if missing:
        raise ModelError(f"the weights lack {', '.join(sorted(missing)[:5])}; copy the whole model folder")


def are_equal(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether two stored tensors are the same in `dtype`."""
    return one.shape == other.shape and all(
        left.to(dtype).equal(right.to(dtype)) for left, right in zip(parts(one), parts(other), strict=True)
    )


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """A stored tensor in parts: what is computed of one then takes no memory of its size."""
    return split(tensor.flatten(), _PART_ELEMENTS)

"""Reads the tensors of a model folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gradbus.errors import ModelError, first_line
from gradbus.formats.frozen import CORRECTION, frozen_names
from gradbus.formats.hf_model import weight_files
from gradbus.formats.safetensors import read_headers


def stored_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of the folder's safetensors that is not frozen, with its name, one at a time, on the CPU. Raises ModelError."""
    names = read_headers([folder / file for file in weight_files(folder)]).keys()
    yield from _read(folder, names - frozen_names(names))


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

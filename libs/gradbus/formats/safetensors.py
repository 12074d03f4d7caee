"""Safetensors files without torch: reads and writes headers."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gradbus.errors import ModelError

PYTORCH: Final[Mapping[str, str]] = {"format": "pt"}
"""Metadata that transformers requires."""
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100 << 20
_NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: bytes `start` to `end` (exclusive)."""

    file: Path
    dtype: str
    """As safetensors names it, e.g. `BF16`."""
    shape: tuple[int, ...]
    start: int
    end: int


def read_headers(files: Sequence[Path]) -> dict[str, StoredTensor]:
    """Every tensor in `files`, by name. Raises ModelError if a file is not safetensors, or a name occurs twice."""
    found: dict[str, StoredTensor] = {}
    for file in files:
        tensors = _header(file)
        refuse_tensors(found.keys() & tensors.keys(), "are in two of the weight files")
        found |= tensors
    return found


def mapped(file: Path) -> mmap.mmap:
    """The file's bytes as a memory map, which the caller closes. Raises ModelError."""
    try:
        with file.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the weights in {file} ({error}); fetch them again") from error


def header(tensors: Mapping[str, tuple[str, Sequence[int]]], item_bytes: int, metadata: Mapping[str, str] | None = PYTORCH) -> bytes:
    """Header of a file with these tensors, name to (dtype, shape), in this order; `item_bytes` is the size of an element.

    The tensors' bytes follow it. Equal to what the safetensors library writes for tensors of one dtype in order of name.
    """
    described: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + item_bytes * math.prod(shape)
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # tensors are aligned
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def refuse_tensors(names: set[str], fault: str) -> None:
    """Raises ModelError unless `names` is empty; `fault` says what is wrong with the tensors."""
    if names:
        shown = ", ".join(sorted(names)[:_NAMES_SHOWN])
        raise ModelError(f"{len(names)} tensors {fault} ({shown}); load weights that belong to this model folder")


class Shaped(Protocol):
    """A tensor, in a file or in memory."""

    @property
    def shape(self) -> Sequence[int]:
        """Its size along each dimension."""
        ...


def check_tensors(found: Mapping[str, Shaped], shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises ModelError unless `found` has exactly the names of `shapes`, with their shapes."""
    refuse_tensors(shapes.keys() - found.keys(), "are missing from the weight files")
    refuse_tensors(found.keys() - shapes.keys(), "are not tensors of this model")
    different = {name for name, tensor in found.items() if tuple(tensor.shape) != tuple(shapes[name])}
    refuse_tensors(different, "have another shape than in this model")


def _header(file: Path) -> dict[str, StoredTensor]:
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            size = file.stat().st_size
            if not 0 < length <= min(_MAX_HEADER_BYTES, size):
                raise ValueError("it has no safetensors header")
            described: dict[str, Any] = json.loads(stream.read(length))
        first = _LENGTH_BYTES + length
        tensors = {name: _tensor(file, first, entry) for name, entry in described.items() if name != "__metadata__"}
        if any(tensor.end > size for tensor in tensors.values()):
            raise ValueError("it is cut off")
        return tensors
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"cannot read the weights in {file} ({error}); fetch them again") from error


def _tensor(file: Path, first: int, entry: Mapping[str, Any]) -> StoredTensor:
    start, end = entry["data_offsets"]
    return StoredTensor(file, str(entry["dtype"]), tuple(int(size) for size in entry["shape"]), first + int(start), first + int(end))

"""Safetensors files read without torch: what they hold, whether it fits the model, and its digest."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gradbus.errors import ModelError

_LENGTH_BYTES: Final = 8
_LONGEST_HEADER: Final = 100 << 20
_NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in a file."""

    file: Path
    dtype: str
    """As safetensors spells it, e.g. `BF16`."""
    shape: tuple[int, ...]
    start: int
    end: int


def read_headers(files: Sequence[Path]) -> dict[str, StoredTensor]:
    """Name to place of every tensor in `files`. Raises ModelError for a file that is not safetensors, or a name that stands twice."""
    found: dict[str, StoredTensor] = {}
    for file in files:
        tensors = _header(file)
        _refuse(found.keys() & tensors.keys(), "stand in two of the weight files")
        found |= tensors
    return found


def check_fit(found: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelError unless `found` holds exactly the model's tensors. A server would ignore unknown names and answer 200."""
    _refuse(shapes.keys() - found.keys(), "are missing from the weight files")
    _refuse(found.keys() - shapes.keys(), "are not tensors of this model")
    _refuse({name for name, tensor in found.items() if tensor.shape != shapes[name]}, "have another shape than in this model")


def digest(tensors: Mapping[str, StoredTensor]) -> str:
    """`sha256:<hex>` over names, dtypes, shapes and bytes in order of name: what manifests name and every engine attests."""
    total = hashlib.sha256()
    contents = {file: _mapped(file) for file in {tensor.file for tensor in tensors.values()}}
    try:
        for name in sorted(tensors):
            tensor = tensors[name]
            total.update(name.encode())
            total.update(tensor.dtype.encode())
            for number in (len(tensor.shape), *tensor.shape):
                total.update(number.to_bytes(8, "little"))
            with memoryview(contents[tensor.file]) as view, view[tensor.start : tensor.end] as part:
                total.update(part)
    finally:
        for content in contents.values():
            content.close()
    return f"sha256:{total.hexdigest()}"


def _header(file: Path) -> dict[str, StoredTensor]:
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            size = file.stat().st_size
            if not 0 < length <= min(_LONGEST_HEADER, size):
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


def _mapped(file: Path) -> mmap.mmap:
    try:
        with file.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read the weights in {file} ({error}); fetch them again") from error


def _refuse(names: set[str], fault: str) -> None:
    if names:
        shown = ", ".join(sorted(names)[:_NAMES_SHOWN])
        raise ModelError(f"{len(names)} tensors {fault} ({shown}); load weights that belong to this model folder")

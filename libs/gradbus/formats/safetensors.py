"""Safetensors files without torch: reads and writes headers, and compares tensors."""

from __future__ import annotations

import json
import math
import mmap
import reprlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gradbus.errors import ModelError
from gradbus.strict_json import parse_json

PYTORCH: Final[Mapping[str, str]] = {"format": "pt"}
"""Metadata that transformers requires."""
LENGTH_BYTES: Final = 8
"""A file begins with the length of its header in so many bytes."""
MAX_HEADER_BYTES: Final = 16 << 20
"""Of all files of a model together. The format allows 100 MB for each; the largest models need a fraction of this."""
MAX_TENSORS: Final = 20_000
"""1024 layers with a dozen tensors each have fewer."""
_ITEM_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_FLOATS: Final[Mapping[str, str]] = {"F64": "d", "F32": "f", "BF16": "f", "F16": "e"}
"""What `struct` calls a dtype; BF16 is the upper half of a float32."""
PART_ELEMENTS: Final = 1 << 18
"""Elements of two tensors that are compared at a time."""
_POINTER: Final = b"version "
"""How the file begins that a clone without Git LFS has in place of the weights."""
_VALUES_PER_TENSOR: Final = 10
_MAX_DIMENSIONS: Final = 8
_MAX_NUMBER: Final = 1 << 63
_NAMES_SHOWN: Final = 3
_CHARACTERS_SHOWN: Final = 100


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
    room = MAX_HEADER_BYTES
    for file in files:
        data = _header_bytes(file, room)
        room -= len(data)
        tensors = _tensors(file, data)
        refuse_tensors(found.keys() & tensors.keys(), "are in two of the weight files")
        found |= tensors
    if len(found) > MAX_TENSORS:
        raise ModelError(f"the weights have {len(found)} tensors, at most {MAX_TENSORS} are taken; choose another model")
    return found


def item_bytes(dtype: str) -> int:
    """Bytes of an element."""
    return _ITEM_BYTES[dtype]


def have_equal_values(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two floating-point tensors of one shape hold the same numbers; reads their files in parts. Raises ModelError."""
    try:
        with one.file.open("rb") as here, other.file.open("rb") as there:
            here.seek(one.start)
            there.seek(other.start)
            for first in range(0, math.prod(one.shape), PART_ELEMENTS):
                count = min(PART_ELEMENTS, math.prod(one.shape) - first)
                left, right = here.read(count * item_bytes(one.dtype)), there.read(count * item_bytes(other.dtype))
                if not are_equal_values(left, one.dtype, right, other.dtype):
                    return False
    except OSError as error:
        raise ModelError(f"the weights cannot be read ({error.strerror}); copy or download the model's folder again") from error
    return True


def are_equal_values(one: bytes, dtype: str, other: bytes, other_dtype: str) -> bool:
    """Whether the bytes of as many elements of two floating-point dtypes hold the same numbers; a NaN is equal to the same bytes alone."""
    return (dtype == other_dtype and one == other) or _numbers(one, dtype) == _numbers(other, other_dtype)


def header_length(start: bytes) -> int:
    """The length of the header of a file that begins with these LENGTH_BYTES."""
    return int.from_bytes(start, "little")


def mapped(file: Path) -> mmap.mmap:
    """The file's bytes as a memory map, which the caller closes. Raises ModelError."""
    try:
        with file.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise _broken(file, error.strerror or "it cannot be mapped") from error
    except ValueError as error:
        raise _broken(file, str(error)) from error


def header(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str] | None = PYTORCH) -> bytes:
    """Header of a file with these tensors, name to (dtype, shape), in this order.

    The tensors' bytes follow it. Equal to what the safetensors library writes for tensors of one dtype in order of name.
    """
    described: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + item_bytes(dtype) * math.prod(shape)
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)  # tensors are aligned
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def refuse_tensors(names: set[str], fault: str) -> None:
    """Raises ModelError unless `names` is empty; `fault` says what is wrong with the tensors."""
    if names:
        shown = ", ".join(name[:_CHARACTERS_SHOWN] for name in sorted(names)[:_NAMES_SHOWN])
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


def _numbers(data: bytes, dtype: str) -> tuple[float, ...]:
    if dtype == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data = bytes(wide)
    code = _FLOATS[dtype]
    return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)


def _header_bytes(file: Path, room: int) -> bytes:
    """The header, at most `room` bytes. Raises ModelError."""
    try:
        with file.open("rb") as stream:
            start = stream.read(LENGTH_BYTES)
            if start == _POINTER:
                raise _broken(file, "it is a pointer of Git LFS and not the weights: `git lfs pull` in the folder fetches them")
            length = header_length(start)
            if length > room:
                raise _broken(file, f"the headers of the weights have more than {MAX_HEADER_BYTES} bytes")
            data = stream.read(length)
    except OSError as error:
        raise _broken(file, error.strerror or "it cannot be read") from error
    if not data.startswith(b"{") or len(data) < length:
        raise _broken(file, "it has no safetensors header")
    return data


def _tensors(file: Path, data: bytes) -> dict[str, StoredTensor]:
    """The tensors of `file`, whose header is `data`. They fill the rest of the file without gaps, as the format demands."""
    try:
        described = parse_json(data, _VALUES_PER_TENSOR * MAX_TENSORS)
        first = LENGTH_BYTES + len(data)
        if not all(isinstance(text, str) for text in described.pop("__metadata__", {}).values()):
            raise ValueError("its metadata is not text")
        tensors = {name: _tensor(file, first, entry) for name, entry in described.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(file, f"its header is broken: {error}") from error
    end = first
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            raise _broken(file, "its tensors overlap or leave gaps")
        end = tensor.end
    if end != file.stat().st_size:
        raise _broken(file, f"it has {file.stat().st_size} bytes and its tensors end at byte {end}")
    return tensors


def _tensor(file: Path, first: int, entry: Mapping[str, Any]) -> StoredTensor:
    dtype, (start, end), shape = entry["dtype"], entry["data_offsets"], entry["shape"]
    if dtype not in _ITEM_BYTES:
        raise ValueError(f"dtype {reprlib.repr(dtype)} is unknown")
    if len(shape) > _MAX_DIMENSIONS or not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in (start, end, *shape)):
        raise ValueError(f"a shape or offset is not a whole number, or a shape has more than {_MAX_DIMENSIONS} dimensions")
    if end - start != _ITEM_BYTES[dtype] * math.prod(shape):
        raise ValueError("a shape does not fit its bytes")
    return StoredTensor(file, dtype, tuple(shape), first + start, first + end)


def _broken(file: Path, fault: str) -> ModelError:
    return ModelError(f"cannot read the weights in {file.name} ({fault}); fetch them again")

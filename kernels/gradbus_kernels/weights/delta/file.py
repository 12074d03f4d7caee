"""Deltas between two safetensors files, to the byte: the file that a worker writes has the digest of the trainer's file.

No torch here, because a worker whose engine is a server has none.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from gradbus_kernels.weights.delta.bytes import DeltaError
from gradbus_kernels.weights.delta.format import FORMATS, FlatTensor, apply_tensors, encode_tensors

_LENGTH_BYTES: Final = 8


def encode_file_delta(old: memoryview, new: memoryview) -> bytes:
    """The delta from file `old` to `new`. Raises DeltaError unless both have the same tensors in the same layout."""
    if _header(old) != _header(new) or len(old) != len(new):
        raise DeltaError("the two files are laid out differently; publish the whole version")
    return encode_tensors(_tensors(old), _tensors(new))


def apply_file_delta(delta: memoryview, old: memoryview, new: memoryview) -> None:
    """Writes the delta's target file into `new`, which has the size of `old` and separate memory.

    Raises WrongBaseError if `old` is not the file that the delta was made from, DamagedDeltaError if the delta is damaged. After an
    error the contents of `new` must not be used.
    """
    header = _header(old)
    new[: len(header)] = header
    apply_tensors(delta, _tensors(old), _tensors(new))


def _header(file: memoryview) -> memoryview:
    """The bytes before the elements. Raises DeltaError if this is not a safetensors file."""
    length = int.from_bytes(file[:_LENGTH_BYTES], "little")
    if not 0 < length <= len(file) - _LENGTH_BYTES:
        raise DeltaError("this is no safetensors file; fetch it again")
    return file[: _LENGTH_BYTES + length]


def _tensors(file: memoryview) -> dict[str, FlatTensor]:
    header = _header(file)
    try:
        described: dict[str, dict[str, Any]] = json.loads(bytes(header[_LENGTH_BYTES:]))
        found = {name: _tensor(file[len(header) :], entry) for name, entry in described.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeltaError(f"a tensor of the file cannot be coded ({error}); publish or fetch the whole version") from None
    if sum(tensor.bits.nbytes for tensor in found.values()) != len(file) - len(header):
        raise DeltaError("the tensors do not fill the file; publish or fetch the whole version")
    return found


def _tensor(elements: memoryview, entry: dict[str, Any]) -> FlatTensor:
    form = FORMATS[entry["dtype"]]
    begin, end = entry["data_offsets"]
    return FlatTensor(form, tuple(entry["shape"]), np.frombuffer(elements[begin:end], f"<u{form.width // 8}"))

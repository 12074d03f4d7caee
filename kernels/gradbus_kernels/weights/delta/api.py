"""The difference between two versions of the weights, bit for bit, in few more bytes than its entropy.

    delta = encode_delta(old, new)
    new = apply_delta(delta, old)

An RL step changes about one bf16 weight in a hundred, mostly by one unit in the last place (ulp). `chunk` describes the code of
the changes, `format` the layout of the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from gradbus_kernels.weights.delta.bytes import DeltaError
from gradbus_kernels.weights.delta.chunk import FloatFormat
from gradbus_kernels.weights.delta.format import FORMATS, FlatTensor, apply_tensors, encode_tensors, flat_digest

_FORMATS: Final[Mapping[torch.dtype, FloatFormat]] = {
    torch.float32: FORMATS["F32"],
    torch.float16: FORMATS["F16"],
    torch.bfloat16: FORMATS["BF16"],
}


def encode_delta(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> bytes:
    """The delta from `old` to `new`, which have equal names, shapes and dtypes (float32, float16, bfloat16), on any device.

    Raises DeltaError where the two do not match or a dtype is not supported.
    """
    return encode_tensors(_flattened(old), _flattened(new))


def apply_delta(delta: bytes | memoryview, old: Mapping[str, Tensor], into: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The new version, on the CPU; `old` is not changed.

    `into` is memory to reuse: contiguous CPU tensors of the same names, shapes and dtypes that share no memory with `old`.
    Raises WrongBaseError if `old` is not the version that the delta was made from, DamagedDeltaError if the delta is damaged.
    After an error the contents of `into` must not be used.
    """
    before = _flattened(old)
    new = {name: _target(name, tensor, into) for name, tensor in old.items()}
    apply_tensors(delta, before, _flattened(new))
    return new


def tensor_digest(name: str, tensor: Tensor) -> bytes:
    """XXH3-128 over name, dtype, shape (as a delta spells them) and the elements in row-major order."""
    return flat_digest(name, _flat(name, tensor))


def _flattened(tensors: Mapping[str, Tensor]) -> dict[str, FlatTensor]:
    return {name: _flat(name, tensor) for name, tensor in tensors.items()}


def _flat(name: str, tensor: Tensor) -> FlatTensor:
    form = _FORMATS.get(tensor.dtype)
    if form is None:
        raise DeltaError(f"tensor {name} is {tensor.dtype}; a delta takes {', '.join(map(str, _FORMATS))}; publish the whole version")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    bits = flat.view(torch.int32 if form.width == 32 else torch.int16).numpy().view(f"u{form.width // 8}")
    return FlatTensor(form, tuple(tensor.shape), bits)


def _target(name: str, old: Tensor, into: Mapping[str, Tensor] | None) -> Tensor:
    if into is None:
        return torch.empty(old.shape, dtype=old.dtype)
    given = into.get(name)
    if given is None or given.dtype != old.dtype or given.shape != old.shape or not given.is_contiguous() or given.is_cuda:
        raise DeltaError(f"`into` has no contiguous CPU tensor {name} of the old one's shape and dtype; allocate it so")
    if given.numel() and given.untyped_storage().data_ptr() == old.untyped_storage().data_ptr():
        raise DeltaError(f"`into` and `old` share the memory of tensor {name}; give memory of its own")
    return given

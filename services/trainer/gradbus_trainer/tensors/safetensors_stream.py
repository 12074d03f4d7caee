"""The safetensors format, written tensor by tensor: the library's own writer needs all tensors at once.

https://github.com/huggingface/safetensors#format: the header's length in 8 bytes, the header in JSON, then the elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import torch

from gradbus.formats.safetensors import header
from gradbus_kernels.weights.digest import SAFETENSORS_DTYPES, WeightsDigest, bytes_of
from gradbus_trainer.tensors.device_reader import DeviceReader
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

BUCKET_ELEMENTS = 1 << 24


def write_safetensors(
    file: BinaryIO, tensors: LazyTensors, dtype: torch.dtype, metadata: Mapping[str, str] | None, digest: WeightsDigest | None
) -> None:
    """Writes `tensors`, rounded to `dtype` (to nearest, ties to even), to the byte as the library does.

    One tensor is in memory at a time, on a GPU two; a tensor that must be cast or copied from a device is written by `BUCKET_ELEMENTS`
    elements. Everything written is added to `digest`. Raises OSError.
    """
    described = {name: (SAFETENSORS_DTYPES[dtype], tensors.shapes[name]) for name in sorted(tensors)}
    file.write(header(described, metadata))
    begun = ""
    for name, elements in DeviceReader(dtype, BUCKET_ELEMENTS).on_host(_buckets(tensors)):
        if digest is not None and name != begun:
            digest.begin(name, dtype, tensors.shapes[name])
            begun = name
        file.write(bytes_of(elements))
        if digest is not None:
            digest.add(elements)
        del elements  # or the tensor would still be in memory when the next is made


def size_of(shapes: Mapping[str, torch.Size], dtype: torch.dtype) -> int:
    """Bytes of all elements."""
    return sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize


def _buckets(tensors: LazyTensors) -> Iterator[tuple[str, torch.Tensor]]:
    for name in sorted(tensors):
        for bucket in torch.split(tensors[name].detach().reshape(-1), BUCKET_ELEMENTS):
            yield name, bucket
            del bucket

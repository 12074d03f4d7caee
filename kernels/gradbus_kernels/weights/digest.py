"""The checksum of a set of weights, which the trainer publishes and workers attest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

SAFETENSORS_DTYPES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


class WeightsDigest:
    """Computes the checksum tensor by tensor, in order of name.

    Each tensor adds its name (UTF-8), its dtype as safetensors spells it, its number of dimensions and its
    shape (little-endian int64 each), then its elements in row-major order.
    """

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def begin(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        """Begins the next tensor; its elements follow. Raises KeyError for a dtype that weights never have."""
        self._sum.update(name.encode())
        self._sum.update(SAFETENSORS_DTYPES[dtype].encode())
        for number in (len(shape), *shape):
            self._sum.update(number.to_bytes(8, "little"))

    def add(self, elements: Tensor) -> None:
        """Adds the tensor's next elements: contiguous, on the CPU, of its dtype."""
        self._sum.update(bytes_of(elements))

    @property
    def text(self) -> str:
        """`sha256:<hex>`."""
        return f"sha256:{self._sum.hexdigest()}"


def bytes_of(elements: Tensor) -> memoryview:
    """A view of the bytes of a contiguous tensor on the CPU."""
    return elements.reshape(-1).view(torch.uint8).numpy().data


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """The checksum of all `tensors`. Raises KeyError for a dtype that weights never have."""
    digest = WeightsDigest()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.begin(name, tensor.dtype, tensor.shape)
        digest.add(tensor.cpu().contiguous())
    return digest.text

"""The checksum of a set of weights in memory, on any device; `digest_tree` defines it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from gradbus_kernels.weights.digest_tree import WeightsDigest, piece_digest
from gradbus_kernels.weights.piece_reader import PieceReader

SAFETENSORS_DTYPES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """The checksum of all `tensors`. Raises KeyError for a dtype that weights never have."""
    return digest_in_order(((name, tensors[name]) for name in sorted(tensors)), PieceReader())


def digest_in_order(tensors: Iterable[tuple[str, Tensor]], reader: PieceReader) -> str:
    """The checksum of tensors that come in order of name; with each of them in memory, and `reader`'s buffers. Raises KeyError."""
    digest = WeightsDigest()
    try:
        for name, tensor in tensors:
            digest.begin(name, SAFETENSORS_DTYPES[tensor.dtype], tensor.shape)
            for piece in reader.submit(tensor, tensor.dtype, lambda _, content: piece_digest(content)):
                digest.add(piece)
        return digest.text()
    finally:
        reader.finish()

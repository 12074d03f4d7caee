"""One checksum for a set of weights: what a trainer publishes and what a worker attests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

SAFETENSORS_DTYPES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """`sha256:<hex>` over names, dtypes, shapes and bytes, in order of name.

    Each tensor adds its name (UTF-8), its dtype as safetensors spells it, its number of dimensions and its
    shape (little-endian int64 each), then its elements in row-major order. Raises KeyError for a dtype that
    weights never have.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(name.encode())
        digest.update(SAFETENSORS_DTYPES[tensor.dtype].encode())
        for number in (tensor.dim(), *tensor.shape):
            digest.update(number.to_bytes(8, "little"))
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"

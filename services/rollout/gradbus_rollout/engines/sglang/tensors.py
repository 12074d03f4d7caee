"""Whether a version's tensors fit the model, and their digest; without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gradbus.formats.safetensors import StoredTensor, mapped, refuse_tensors


def check_fit(found: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ModelError unless `found` holds exactly the model's tensors. A server would ignore unknown names and answer 200."""
    refuse_tensors(shapes.keys() - found.keys(), "are missing from the weight files")
    refuse_tensors(found.keys() - shapes.keys(), "are not tensors of this model")
    refuse_tensors({name for name, tensor in found.items() if tensor.shape != shapes[name]}, "have another shape than in this model")


def digest(tensors: Mapping[str, StoredTensor]) -> str:
    """`sha256:<hex>` over names, dtypes, shapes and bytes in order of name: what manifests name and every engine attests."""
    total = hashlib.sha256()
    contents = {file: mapped(file) for file in {tensor.file for tensor in tensors.values()}}
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

"""Merges LoRA adapters into the weights of a model folder, one tensor at a time. Needs numpy, which the client needs only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gradbus.errors import ModelError, StackError
from gradbus.formats.frozen import frozen_names
from gradbus.formats.peft import adapter_names
from gradbus.formats.safetensors import StoredTensor, header, mapped, read_headers, refuse_tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HALF_BITS: Final = 16


def check_mergeable() -> None:
    """Raises StackError where numpy is missing."""
    try:
        import numpy  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        raise StackError("merging adapters needs numpy; install it (`pip install numpy`), or export them with --adapters") from None


def write_merged(weights: Sequence[Path], adapters: Path, scale: float, folder: Path) -> None:
    """Writes each of `weights` into `folder` under its name, in float32, with `scale · B A` added where there is an adapter.

    Tensors that no run trains stay as they are. A file gets its name only when it is complete.

    Raises ModelError for an adapter that belongs to none of the weights.
    """
    parts = read_headers([adapters])
    found = read_headers(weights)
    refuse_tensors(parts.keys() - {part for name in found for part in adapter_names(name)}, "of the adapters belong to no weight")
    frozen = frozen_names(found)
    for file in weights:
        temporary = folder / f".{file.name}.tmp"
        own = {name: tensor for name, tensor in found.items() if tensor.file == file}
        _write(temporary, own, frozen, parts, scale)
        temporary.replace(folder / file.name)


def _write(
    target: Path, tensors: Mapping[str, StoredTensor], frozen: frozenset[str], parts: Mapping[str, StoredTensor], scale: float
) -> None:
    with target.open("wb") as stream:
        dtypes = {name: tensor.dtype if name in frozen else "F32" for name, tensor in tensors.items()}
        stream.write(header({name: (dtypes[name], tensor.shape) for name, tensor in tensors.items()}))
        for name, tensor in tensors.items():
            if name in frozen:
                stream.write(_stored(tensor))
                continue
            weight = _float32(tensor)
            down, up = (parts.get(part) for part in adapter_names(name))
            if down is not None and up is not None:
                weight = weight + _float32(up) @ _float32(down) * scale
            stream.write(weight.astype("<f4", copy=False).tobytes())


def _stored(tensor: StoredTensor) -> bytes:
    with mapped(tensor.file) as content:
        return content[tensor.start : tensor.end]


def _float32(tensor: StoredTensor) -> NDArray[np.float32]:
    import numpy as np  # noqa: PLC0415 - see `check_mergeable`

    raw = _stored(tensor)
    values: NDArray[Any]
    match tensor.dtype:
        case "F32":
            values = np.frombuffer(raw, "<f4")
        case "F16":
            values = np.frombuffer(raw, "<f2").astype(np.float32)
        case "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << _HALF_BITS).view(np.float32)
        case other:
            raise ModelError(
                f"a tensor in {tensor.file} has dtype {other}, into which adapters are not merged; export them with --adapters"
            )
    return values.reshape(tensor.shape)

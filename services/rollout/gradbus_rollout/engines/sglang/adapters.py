"""The folder of a version of LoRA adapters, as the server reads it.

The server fuses q, k and v, and gate and up, and takes adapters only for whole fused groups: given a part of a group, it ignores
tensors or exits. So the layers of a group that a run does not train get adapters of zeros, in a file beside the version's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gradbus.errors import ModelError
from gradbus.formats.peft import ADAPTER_FILE, CONFIG_FILE, adapter_config, adapter_shapes
from gradbus.formats.safetensors import StoredTensor, header
from gradbus.spec import LoraSpec
from gradbus_rollout.engines.server.version_folder import new_version_folder, place_shard

_FUSED: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_ZEROS_FILE: Final = "zeros.safetensors"
_FLOAT32_BYTES: Final = 4


def served_modules(lora: LoraSpec) -> list[str]:
    """Linear layers with adapters on the server: the run's, and the other layers of their fused groups."""
    groups = [group for group in _FUSED if set(group) & set(lora.target_modules)]
    return sorted({*lora.target_modules, *(name for group in groups for name in group)})


def stored_adapters(model: Mapping[str, StoredTensor], lora: LoraSpec) -> dict[str, tuple[int, ...]]:
    """Name to shape of the tensors in a version of this model."""
    return adapter_shapes({name: tensor.shape for name, tensor in model.items()}, lora)


def make_adapter_folder(root: Path, model: Mapping[str, StoredTensor], lora: LoraSpec, shards: Sequence[Path], copy: bool) -> Path:
    """Makes a new folder under `root` in peft's layout. Raises ModelError for a version in several files, and DiskError."""
    if len(shards) != 1:
        raise ModelError(f"adapters come in one file, but this version has {len(shards)}; publish the version again")
    served = lora.model_copy(update={"target_modules": tuple(served_modules(lora))})
    absent = stored_adapters(model, served).items() - stored_adapters(model, lora).items()
    with new_version_folder(root) as folder:
        place_shard(shards[0], folder / ADAPTER_FILE, copy)
        (folder / CONFIG_FILE).write_bytes(adapter_config(served))
        if absent:
            _write_zeros(folder / _ZEROS_FILE, dict(sorted(absent)))
    return folder


def _write_zeros(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    with file.open("wb") as stream:
        stream.write(header({name: ("F32", shape) for name, shape in shapes.items()}))
        stream.truncate(stream.tell() + _FLOAT32_BYTES * sum(map(math.prod, shapes.values())))

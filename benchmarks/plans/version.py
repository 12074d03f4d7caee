"""The version that an engine loads, as a trainer would publish it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from gradbus.formats.peft import adapter_shapes
from gradbus.spec import RunSpec
from gradbus_kernels.models.dtypes import DTYPES

VERSION: Final = "version.safetensors"
_STD: Final = 0.02


def write_version(spec: RunSpec, folder: Path, path: Path) -> None:
    """Writes the folder's weights in the dtype of versions, or random adapters with `trainer.lora`."""
    tensors, lora = load_file(folder / "model.safetensors"), spec.trainer.lora
    if lora is not None:
        shapes = adapter_shapes({name: tensor.shape for name, tensor in tensors.items()}, lora)
        generator = torch.Generator().manual_seed(spec.seed)
        tensors = {name: _STD * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file({name: tensor.to(DTYPES[spec.version_dtype]) for name, tensor in tensors.items()}, path)

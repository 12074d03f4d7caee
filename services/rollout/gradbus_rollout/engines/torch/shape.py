"""Which models the embedded engine runs."""

from __future__ import annotations

from pathlib import Path

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus_kernels.models.config import ModelConfig, read_model_config


def read_shape(folder: Path) -> ModelConfig:
    """Shape of the model in `folder`; ModelError when it uses what this engine does not compute."""
    check_model_folder(folder)
    shape = read_model_config(folder)
    refused = {
        "a sliding window": any(window is not None for window in shape.windows),
        "attention_bias": shape.out_bias,
        "mlp_bias": shape.mlp_bias,
    }
    faults = [name for name, asked in refused.items() if asked]
    if faults:
        raise ModelError(f"config.json asks for {', '.join(faults)}, which the embedded engine does not compute; choose another model")
    return shape

"""Which models the embedded engine runs."""

from __future__ import annotations

from pathlib import Path

from gradbus.errors import ModelError
from gradbus.formats.hf_model import check_model_folder
from gradbus_kernels.models.config import ModelConfig, read_model_config


def read_shape(folder: Path) -> ModelConfig:
    """Shape of the model in `folder`; ModelError when it uses what this engine does not compute."""
    check_model_folder(folder)
    config = read_model_config(folder)
    config.family.require("embedded_engine")
    if features := config.unfused_features:
        raise ModelError(f"config.json asks for {', '.join(features)}, which the embedded engine does not compute; choose another model")
    return config

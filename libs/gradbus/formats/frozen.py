"""Tensors of a model folder that no run trains: parts that a text decoder has no place for, and what no optimiser moves."""

from __future__ import annotations

from typing import Final

FROZEN_PREFIXES: Final = (
    *("mtp.", "model.mtp.", "model.mtp_layers."),
    *("visual.", "model.visual.", "vision_tower.", "model.vision_tower.", "vision_model.", "model.vision_model."),
    *("multi_modal_projector.", "model.multi_modal_projector."),
)
"""Beginnings of their names: heads that predict several tokens, vision towers, and what projects images into the decoder."""
FROZEN_SUFFIXES: Final = (".e_score_correction_bias", ".expert_bias")
"""Ends of their names: biases that balance a router's choice of experts, which no gradient reaches."""


def is_frozen(name: str) -> bool:
    """Whether a tensor of a folder is carried along from version to version, with the bits that the folder stores."""
    return name.startswith(FROZEN_PREFIXES) or name.endswith(FROZEN_SUFFIXES)

"""Tensors of a model folder that no run trains."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

FROZEN_PREFIXES: Final = (
    *("mtp.", "model.mtp.", "model.mtp_"),
    *("visual.", "model.visual.", "vision_tower.", "model.vision_tower.", "vision_model.", "model.vision_model."),
    *("multi_modal_projector.", "model.multi_modal_projector."),
)
"""Beginnings of their names: heads that predict several tokens, vision towers, and what projects images into the decoder."""
CORRECTION: Final = "e_score_correction_bias"
"""Name of what a router adds to its scores before it chooses experts: set while a model is pretrained, by no gradient."""
FROZEN_SUFFIXES: Final = (f".{CORRECTION}", ".expert_bias")
"""Ends of their names: biases that balance a router's choice of experts, which no gradient reaches."""
_LAYER: Final = re.compile(r"(model\.layers\.\d+\.)(.*)", re.DOTALL)
_OF_FURTHER_LAYERS: Final = "eh_proj.weight"
"""What only a layer after the decoder's has, which predicts further tokens from embeddings (e) and hidden states (h)."""


def frozen_names(names: Collection[str]) -> frozenset[str]:
    """Those of a folder's or a file's tensors that are carried along from version to version, with the bits that the folder stores."""
    layers = {name: found.groups() for name in names if (found := _LAYER.fullmatch(name))}
    further = {layer for layer, part in layers.values() if part == _OF_FURTHER_LAYERS}
    return frozenset(
        name
        for name in names
        if name.startswith(FROZEN_PREFIXES) or name.endswith(FROZEN_SUFFIXES) or (name in layers and layers[name][0] in further)
    )

"""transformers' configuration of a model, without what would run code of the folder or change what is computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PreTrainedConfig

from gradbus.errors import ModelError
from gradbus.formats.config_fields import check_counts
from gradbus.formats.hf_model import CONFIG, read_object
from gradbus.formats.transformers_families import TransformersFamily

_IGNORED: Final = frozenset(
    {
        *("auto_map", "attn_implementation", "experts_implementation", "dtype", "torch_dtype", "is_decoder"),
        *("num_labels", "id2label", "label2id", "problem_type"),  # of a classifier, as many as a folder asks for
        *("attribute_map", "return_dict", "output_attentions", "output_hidden_states"),
    }
)
_RANDOM: Final = ("dropout", "pdrop", "layerdrop", "drop_rate", "jitter")
"""Parts of the names of settings that make a forward pass random."""
_SHOWN: Final = 300
"""Characters of transformers' own message."""


def text_configuration(folder: Path, family: TransformersFamily) -> PreTrainedConfig:
    """The configuration of the text model. Raises ModelError, and what transformers raises for some wrong ones."""
    stated = family.text_config(read_object(folder / CONFIG))
    check_counts(stated)
    kind = family.text_type or family.model_type
    if kind not in CONFIG_MAPPING:
        raise ModelError(f"the installed transformers does not know {kind!r}; install gradbus[families] with a newer transformers")
    try:
        config = CONFIG_MAPPING[kind].from_dict(_plain(stated))
    except StrictDataclassError as error:
        what = " ".join(str(error).split())[:_SHOWN]
        raise ModelError(f"config.json is none that transformers takes ({what}); save the model again with transformers") from error
    for name, value in config.to_dict().items():
        if isinstance(value, int | float) and any(part in name for part in _RANDOM):
            setattr(config, name, 0.0)
    return config


def logits_scale(config: PreTrainedConfig) -> float:
    """What the logits are multiplied by after the head, for the families that do so."""
    match config.model_type:
        case "cohere" | "cohere2" | "cohere2_moe":
            return float(config.logit_scale)
        case "hyperclovax":
            return float(config.logits_scaling)
        case "falcon_h1":
            return float(config.lm_head_multiplier)
        case "granitemoe" | "granitemoe_swa" | "granite_swa" | "granitemoehybrid" | "granitemoeshared" | "minicpm3":
            return 1.0 / float(config.logits_scaling)
        case _:
            return 1.0


def logits_softcap(config: PreTrainedConfig) -> float | None:
    """The bound of the logits, for the families that have one; None: none."""
    names = {"recurrent_gemma": "logits_soft_cap", "nanochat": "final_logit_softcapping", "vaultgemma": "final_logit_softcapping"}
    stated = getattr(config, names.get(config.model_type, ""), None)
    return None if stated is None else float(stated)


def _plain(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _decoded(value) for name, value in stated.items() if name not in _IGNORED and not name.startswith("_")}


def _decoded(value: Any) -> Any:
    """With infinities, which transformers writes as `{"__float__": "Infinity"}`."""
    if isinstance(value, dict):
        return float(value["__float__"]) if value.keys() == {"__float__"} else {name: _decoded(part) for name, part in value.items()}
    return [_decoded(part) for part in value] if isinstance(value, list) else value

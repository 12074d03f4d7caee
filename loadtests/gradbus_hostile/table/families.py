"""Folders of mixtures of experts, and of families that transformers computes."""

from __future__ import annotations

from typing import Any, Final

from gradbus_hostile.damage import Damage, family, fields, tensors
from gradbus_hostile.table.submission import FAILED, REFUSED, Submission

_SERVED: Final = {"rollout": {"engine": "sglang"}}
_EXPERTS: Final = {"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def _folder(name: str, change: Damage, ends: frozenset[Any] = REFUSED, **sections: Any) -> Submission:
    return Submission(f"family: {name}", lambda material: material.model(change) | sections, ends)


def _own(model_type: str, change: Damage, name: str, ends: frozenset[Any] = REFUSED) -> Submission:
    return _folder(f"{model_type}, {name}", family(model_type, change, **_EXPERTS), ends)


def _fallback(model_type: str, ends: frozenset[Any] = REFUSED, sizes: dict[str, Any] | None = None, **changed: Any) -> Submission:
    """By transformers, with other fields in config.json, sampled by a server."""
    change = family(model_type, fields("config.json", **changed), **(sizes or {}))
    return Submission(
        f"family: {model_type} with {changed!r:.80}",
        lambda material: material.spec(model=material.model(change)["model"], **_SERVED),
        ends,
    )


def _nan_corrections(found: dict[str, Any]) -> None:
    for name, tensor in found.items():
        if name.endswith("e_score_correction_bias"):
            tensor.fill_(float("nan"))


def _misnumbered(found: dict[str, Any]) -> None:
    for name in [name for name in found if ".experts.0." in name]:
        found[name.replace(".experts.0.", ".experts.00.")] = found.pop(name)


def _nothing_trained(found: dict[str, Any]) -> None:
    for name in list(found):
        found[f"mtp.{name}"] = found.pop(name)


FAMILIES: Final = (
    *(_own("qwen3_moe", fields("config.json", num_local_experts=count), f"{count} experts") for count in (10**6, 10**9, -1)),
    _own("qwen3_moe", fields("config.json", mlp_only_layers=list(range(100_000))), "a layer for each of 100,000"),
    _own("qwen3_moe", tensors(_misnumbered), "an expert 00"),
    _own("glm4_moe", tensors(_nan_corrections), "corrections that are NaN", FAILED),
    _own("gpt_oss", fields("config.json", sliding_window=2**40), "a window of 2^40"),
    _own("gpt_oss", fields("config.json", layer_types=["full_attention"] * 40_000), "40,000 kinds of layers"),
    _fallback("gpt2", num_layers=10**9),
    _fallback("gpt2", hidden_size=2**30),
    _fallback("gpt2", per_layer_config={"0": {"_attn_implementation": "kernels-community/evil"}}),
    _fallback("gpt_neo", attention_types=[[["global"], 10**9]], sizes={"attention_types": [[["global"], 2]], "num_layers": 2}),
    _fallback("jamba", num_experts=10**9, sizes=_EXPERTS),
    _fallback("mamba", chunk_size=2**20),
    _fallback("gpt2", n_layer=1024, ends=FAILED),
    _fallback("jamba", num_experts=1024, sizes=_EXPERTS, ends=FAILED),
    _fallback("gpt2", activation_function="evil", ends=FAILED),
    _fallback("gpt2", tie_word_embeddings="no"),
    _folder("gpt2, nothing is trained", family("gpt2", tensors(_nothing_trained))),
)

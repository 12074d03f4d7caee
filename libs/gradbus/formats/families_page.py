"""docs/families.md, written from the registry of families. No torch."""

from __future__ import annotations

from typing import Final

from gradbus.formats.frozen import FROZEN_PREFIXES
from gradbus.formats.model_families import MODEL_FAMILIES, ModelFamily

_CONTRACT: Final = "tests/contract/test_model_families.py"
_SERVED_BY_TRANSFORMERS: Final = frozenset({"seed_oss", "smollm3"})
"""SGLang 0.5.21 has no class of its own for them and takes that of transformers."""
_WINDOWS: Final = {
    "optional": "sliding window in some layers",
    "everywhere": "sliding window",
    "alternating": "sliding window in all layers but every nth",
}
_BEFORE: Final = f"""# Model families

Decoders of these families are trained, dense ones and mixtures of experts; every other architecture is refused at submission with this
list. A family is a row of `MODEL_FAMILIES` (`libs/gradbus/formats/model_families.py`), and this page is written from it:
`python -m gradbus_gateway.documents docs`.
[Extending](extending.md#a-model-family) says how to add one.

Proof: `{_CONTRACT}` holds for every row, on random models of a plain and an odd configuration (heads
wider than the hidden state, fewer key heads, window, tied and untied head, biases). It compares

- with transformers 5: log-probabilities within 1e-5, gradients of every parameter within 1e-4, bfloat16 within twice its own error,
- rows packed together with rows alone, and layers that are computed again with layers that are not,
- the first version with the folder, bit by bit; transformers loads its copy,
- what the embedded engine recorded with what the trainer computes, without and with adapters (merged there, beside the base here),
- a resumed trainer with an undisturbed one, in float32 and bfloat16.

Faults planted in the decoder, such as norms after the rotation, a window off by one or experts in another order, exceed the bound
tenfold and more.
"""
_AFTER: Final = f"""
- *torch engine*: the embedded engine samples it. No family's biases of the attention's output or of the feed-forward part are computed
  there, nor a part of each head that is turned as halves (Phi-4-mini); such a model is refused when the engine opens it.
- *trainer*: plain torch, in float32 and with `trainer.dtype = "bf16"`; *LoRA* with `[trainer.lora]`. Families with fused matrices have
  other layers to name in `trainer.lora.target_modules`: the table under it.
- *DeepSpeed*: it trains the same decoder. `tests/contract/test_learner_contract.py` compares its stages with plain torch on a Llama, and
  `tests/contract/test_model_families_deepspeed.py` the stages 0, 2 and 3 on every family (`make test-engines`).
- *Experts*: versions name each expert as the folder does. The router's softmax and the sums over a token's experts are float32. No loss
  balances the experts. The trainer computes an expert once for all of its tokens, with plain products; the embedded engine computes every
  expert that any row needs for all rows, so that no row's bits depend on the others. It is correct and slow. With DeepSpeed a layer's
  experts are gathered together. `trainer.lora.target_modules` may name attention layers only. `batch_invariant` is refused: the trainer's
  groups of tokens and the engine's rows are products of different shapes.
- *batch_invariant*: `numerics = "batch_invariant"`; a model with a sliding window is refused.
- *SGLang*: whether release 0.5.21 has a class of its own or takes that of transformers. Tests run SGLang with Qwen2 models only; for any
  family each version is proven on arrival ([engines](engines.md#versions)), so a server that does not take a family's names fails loudly.

Tensors beside the decoder's are carried along unchanged ([weights](weights.md#what-is-published)) if their names begin with one of
{", ".join(f"`{prefix}`" for prefix in FROZEN_PREFIXES)}.

Not computed: longrope (Phi-4-mini, Phi-3 with 128k), MLA, gated delta nets, Mamba layers and images.
"""


def families_page() -> str:
    """The page's text."""
    rows = "\n".join(_row(family) for family in MODEL_FAMILIES.values())
    head = "| architecture | beyond Llama's decoder | torch engine | trainer, bf16 | DeepSpeed | LoRA | batch_invariant | SGLang |"
    layers = "\n".join(
        f"| `{family.architecture}` | {', '.join(f'`{name}`' for name in family.linear_layers)} |"
        for family in MODEL_FAMILIES.values()
        if {"qkv_proj", "gate_up_proj"} & set(family.linear_layers)
    )
    fused = f"\n| fused | layers that adapters may name |\n|---|---|\n{layers}\n"
    return f"{_BEFORE}\n{head}\n|---|---|---|---|---|---|---|---|\n{rows}\n{fused}{_AFTER}"


def _row(family: ModelFamily) -> str:
    def mark(capability: str) -> str:
        return "yes" if capability in family.capabilities else "no"

    served = "class of transformers" if family.model_type in _SERVED_BY_TRANSFORMERS else "own class"
    cells = (
        f"`{family.architecture}`",
        "; ".join(_differences(family)) or "nothing",
        *(mark("embedded_engine"), "yes", "yes", "attention" if family.experts else mark("lora"), mark("batch_invariant"), served),
    )
    return f"| {' | '.join(cells)} |"


def _differences(family: ModelFamily) -> list[str]:
    places, fused = {place for _, place in family.norms}, set(family.linear_layers)
    phrases = {
        "biases of queries, keys and values": family.qkv_bias is True or bool(family.defaults.get("attention_bias")),
        "norm of each head of queries and keys": family.qk_norm == "head",
        "norms of all queries and of all keys": family.qk_norm == "width",
        "norms multiply by 1 + weight": family.norm_kind == "offset",
        "norms before and after": {"before_attention", "after_attention"} <= places,
        "norms after, not before": "before_attention" not in places,
        _WINDOWS.get(family.windows, ""): family.windows in _WINDOWS,
        "rotary base by kind of layer": bool(family.local_rope_theta),
        "layers without rotary embedding": family.has_layers_without_rope,
        "rotary pairs are neighbours": family.rope_pairs == "neighbours",
        "a part of each head is turned": family.has_partial_rope,
        "multipliers of embeddings, scores and more": family.multipliers != "none",
        "softcaps of scores and logits": family.has_softcaps,
        f"`{family.activation[1]}`": family.activation[1] != "silu",
        "experts": family.experts is not None,
        "dense layers among those with experts": family.experts is not None and family.experts.has_dense_layers,
        "fused queries, keys and values": "qkv_proj" in fused,
        "fused gates and ups": "gate_up_proj" in fused,
    }
    return [phrase for phrase, holds in phrases.items() if holds]

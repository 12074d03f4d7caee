"""docs/families.md, written from the registry of families. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gradbus.formats.frozen import CORRECTION, FROZEN_PREFIXES, FROZEN_SUFFIXES
from gradbus.formats.model_families import MODEL_FAMILIES, ModelFamily, ServerLack
from gradbus.formats.transformers_families import TRANSFORMERS_FAMILIES

_CONTRACT: Final = "tests/contract/test_model_families.py"
_SERVED_BY_TRANSFORMERS: Final = frozenset({"seed_oss", "smollm3"})
"""SGLang 0.5.21 has no class of its own for them and takes that of transformers."""
_SERVED: Final = ("qwen3", "mistral", "gemma3_text", "qwen3_moe", "mixtral", "glm4", "olmo2", "phi3")
"""Families that a real SGLang server sampled as the decoder computes them."""
_TESTED_SERVED: Final = tuple(f"`{MODEL_FAMILIES[name].architecture}`" for name in _SERVED)
_LEFT_OUT: Final[Mapping[ServerLack, str]] = {
    "windows": "windows",
    "growing_queries": "growing queries",
    "mlp_bias": "`mlp_bias`",
}
_WINDOWS: Final = {
    "optional": "sliding window in some layers",
    "everywhere": "sliding window",
    "alternating": "sliding window in all layers but every nth",
}
_BEFORE: Final = f"""# Model families

Gradbus's decoder computes these families, dense ones and mixtures of experts. [Others](#families-that-transformers-computes) are computed
by transformers' own models, for training alone. Every other architecture is refused at submission with this list. A family is a row of
`MODEL_FAMILIES` (`libs/gradbus/formats/model_families.py`), and this page is written from it: `python -m gradbus_gateway.documents docs`.
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
- *torch engine*: the embedded engine samples it. No family's biases of the feed-forward part are computed there; such a
  model is refused when the engine opens it.
- *trainer*: plain torch, in float32 and with `trainer.dtype = "bf16"`; *LoRA* with `[trainer.lora]`. Families with fused matrices have
  other layers to name in `trainer.lora.target_modules`: the table under it.
- *DeepSpeed*: it trains the same decoder. `tests/contract/test_learner_contract.py` compares its stages with plain torch on a Llama, and
  `tests/contract/test_model_families_deepspeed.py` the stages 0, 2 and 3 on every family (`make test-engines`).
- *Experts*: versions name each expert as the folder does. The router's softmax and the sums over a token's experts are float32. No loss
  balances the experts. The trainer computes an expert once for all of its tokens, with plain products; the embedded engine computes every
  expert that any row needs for all rows, so that no row's bits depend on the others. It is correct and slow. With DeepSpeed a layer's
  experts are gathered together. `trainer.lora.target_modules` may name attention layers only. `batch_invariant` is refused: the trainer's
  groups of tokens and the engine's rows are products of different shapes.
- *batch_invariant*: `numerics = "batch_invariant"`; a model with a sliding window, with biases of the attention's output, or that turns a
  part of each head, is refused.
- *SGLang*: whether release 0.5.21 has a class of its own or takes that of transformers, and what its class leaves out without a word.
  A run is refused at submission if its samples may be longer than such a window, or than the length from which queries grow
  (`rollout.max_prompt_tokens`), or if the model has such biases. Up to that length both compute the same.

SGLang was tested with tiny random models, on a CPU with AVX2 and in float32. `tests/engines/sglang/test_sglang_decoder_families.py` starts
the server from the folder as a worker does, loads two versions, and compares tensors by the server's checker, the probe, and
log-probabilities of samples within 1e-5 of the trainer's decoder. It does so for {", ".join(_TESTED_SERVED)}.
Whole runs were of Qwen2 and Qwen3-MoE models. No GPU has served any of these families.

| family | what SGLang 0.5.21 does |
|---|---|
| `GptOssForCausalLM` | does not start on such a CPU: asks for an attention backend of a GPU, or of a CPU with AMX |
| `Gemma2ForCausalLM` | on a CPU `torch_native` leaves out the softcap of scores. Does not start without `hidden_act` in config.json |
| `Gemma2ForCausalLM`, `Gemma3ForCausalLM` | skips a head that is not tied, which published models do not have |
| `Qwen2ForCausalLM`, `MixtralForCausalLM`, `Olmo2ForCausalLM`, `Olmo3ForCausalLM` | fails where `head_dim` is not hidden size over heads |
| `Qwen3MoeForCausalLM` | does not tie the head, and gives all layers experts: refused when the first version arrives |
| `Olmo3ForCausalLM` | takes 10,000 for the rotary base if config.json has `rope_parameters` by kind of layer; state `rope_theta` there |

The comparison of tensors, which each version passes on arrival ([engines](engines.md#versions)), finds tensors that the server did not
fill. It cannot find what a class leaves out of the computation: look at the log-probabilities of an untested family's first samples.

Tensors beside the decoder's are carried along unchanged ([weights](weights.md#what-is-published)) if their names begin with one of
{", ".join(f"`{prefix}`" for prefix in FROZEN_PREFIXES)},
or end with one of {", ".join(f"`{suffix}`" for suffix in FROZEN_SUFFIXES)}. So are layers after the decoder's that predict
further tokens (with an `eh_proj`). Trainer and torch engine read the `{CORRECTION}` of routers from the model's folder.

Weights are floating-point numbers. A folder with quantised ones (MXFP4, FP8) is refused with what to do.

*the text part of a model with images* (Mistral Small 3, Ministral 3): text alone is trained and sampled, under the folder's names, and the
vision tower is carried along. Adapters are refused, because peft names them as transformers' modules are named, not as the folder's
tensors are.

*longrope* (Phi-3 with 128k, Phi-3.5, Phi-4-mini): the context of such a model is `original_max_position_embeddings`, 4,096 tokens, and a
run that asks for more is refused. transformers turns a longer sequence by other frequencies from its first token on. What a token's
probability is would then depend on tokens that come after it: the trainer, which sees the whole sample, and an engine, which sampled its
beginning before it knew the length, could not agree, and SGLang chooses by the longest sequence of its batch. Up to that length all of
them use the short factors, and agree.

Not computed by it: MLA, gated delta nets, Mamba layers and images.
"""
_BY_TRANSFORMERS: Final = """
## Families that transformers computes

A folder of one of these families is trained by transformers' own model, which trainer and reference import for such a folder alone
(`gradbus[families]`; the images have it; [decision 23](decisions/0023-transformers-for-other-families.md)). No code of a folder is run.

| | |
|---|---|
| trainer | plain torch, `trainer.dtype` fp32 and bf16, `trainer.gradient_checkpointing`, KL to the base by the reference service |
| engine | a server: `rollout.engine = "sglang"`. The torch engine is refused; [given responses](given-responses.md) need none |
| refused at submission | DeepSpeed, `[trainer.lora]`, `numerics = "batch_invariant"`, quantised folders (FP8, MXFP4, GPTQ) |
| refused in config.json | `per_layer_config`; above 1024, layers, experts, `head_dim` and `chunk_size` under any name; above 2²⁴, others |
| versions | have the names, shapes and one tensor per expert of the folder, however transformers holds them |
| experts | have no auxiliary loss; biases of routers are carried along in the folder's dtype |

A submission compares every tensor's shape with config.json for the families of the first table. For these it knows only that a matrix has
`vocab_size` rows, because the gateway has no torch: the trainer makes the model on torch's device without memory, refuses missing, surplus
and misshapen tensors by name before it allocates anything, and the run fails with that cause. A tied head that is stored too
(`tie_word_embeddings`) must equal the embedding. For all families the submission compares both, in parts, and stores nothing of a folder
whose head is another.

Every start compares the first version with the folder bit by bit, and log-probabilities of two short texts with those of transformers'
whole model. `tests/contract/test_transformers_families.py` does for sixteen families what the contract above does, and compares
log-probabilities and versions of every listed one, on CPUs with tiny random models. SGLang has sampled StableLM and Starcoder2 in whole
runs (`tests/engines/sglang/test_sglang_families.py`), no other of them yet.

*Packed*, with shared prompts, in Gradbus's attention: {packed}.

*One row a sequence*, grouped by length and padded at the right, because layers have a state that packing would carry over, or attention
has sinks or a bias of its own: {rows}. A configuration whose `layer_types` names other layers than attention is computed so in every
family. Prompts are not shared there: a group of eight costs eight prompts. Without the packages `fla` and `causal_conv1d`, gated delta
nets and Mamba layers run transformers' plain torch, which is slow.

Of `Qwen3_5ForConditionalGeneration` and `Qwen3_5MoeForConditionalGeneration` the text model is trained; the vision tower and `mtp.*` are
carried along.
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
    return f"{_BEFORE}\n{head}\n|---|---|---|---|---|---|---|---|\n{rows}\n{fused}{_AFTER}{_by_transformers()}"


def _by_transformers() -> str:
    own = {family.architecture for family in MODEL_FAMILIES.values()}
    others = [family for family in TRANSFORMERS_FAMILIES.values() if family.architecture not in own]
    packed, rows = (
        ", ".join(f"`{family.architecture}`" for family in others if family.attention_alone is attention) for attention in (True, False)
    )
    return _BY_TRANSFORMERS.format(packed=packed, rows=rows)


def _row(family: ModelFamily) -> str:
    def mark(capability: str) -> str:
        return "yes" if capability in family.capabilities else "no"

    served = "class of transformers" if family.model_type in _SERVED_BY_TRANSFORMERS else "own class"
    if left_out := " and ".join(phrase for lack, phrase in _LEFT_OUT.items() if lack in family.server_lacks):
        served = f"{served}, without {left_out}"
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
        "the text part of a model with images": bool(family.text_types),
        "queries grow with their position": family.has_query_scale,
        "softcaps of scores and logits": family.has_softcaps,
        f"`{family.activation[1]}`": family.activation[1] != "silu",
        "experts": family.experts is not None,
        "a sink in each head's softmax": family.has_sinks,
        "biases of all matrices": family.experts is not None and family.experts.fused,
        "clamped SwiGLU": family.experts is not None and family.experts.fused,
        "softmax over the chosen experts alone": family.experts is not None and family.experts.scores == "softmax_of_chosen",
        "shared experts": family.experts is not None and family.experts.shared,
        "sigmoid router with a correction, groups": family.experts is not None and family.experts.grouped,
        "dense layers among those with experts": family.experts is not None and family.experts.dense_layers != "none",
        "fused queries, keys and values": "qkv_proj" in fused,
        "fused gates and ups": "gate_up_proj" in fused,
    }
    return [phrase for phrase, holds in phrases.items() if holds]

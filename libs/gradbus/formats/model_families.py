"""The model families that can be trained: how they differ, and what is supported for each. No torch.

A family is a row of `MODEL_FAMILIES`. The check of a model folder, the reading of config.json (`gradbus.formats.model_config`), both
decoders of the trainer, the embedded engine and LoRA ask the row when a model is made; none of them compares a model type.
docs/extending.md says how to add one, and tests/contract/test_model_families.py is its contract.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from gradbus.errors import Fault, ModelError

if TYPE_CHECKING:
    from gradbus.spec import LoraSpec, RolloutSpec

Capability = Literal["embedded_engine", "batch_invariant", "lora"]
"""Sampling by the embedded engine, `numerics = "batch_invariant"`, training of LoRA adapters."""

Stated = bool | str
"""A property of all models of a family, or the field of config.json that states it (false where the field is missing)."""

QkNorm = Literal["head", "width"]
NormKind = Literal["llama", "float32", "offset"]
NormPlace = Literal["before_attention", "after_attention", "before_mlp", "after_mlp"]
NORM_PLACES: Final[tuple[NormPlace, ...]] = get_args(NormPlace)
Windows = Literal["none", "optional", "everywhere", "alternating"]
Multiplied = Literal["none", "stated", "gemma"]

RouterScores = Literal["softmax", "sigmoid", "softmax_of_chosen"]

ServerLack = Literal["windows", "growing_queries", "mlp_bias"]

_ROPE_KINDS: Final = ("default", "linear", "llama3", "yarn")
_ATTENTION_LAYERS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_LINEAR_LAYERS: Final = (*_ATTENTION_LAYERS, "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class ExpertFamily:
    """Properties that the layers with experts (Shazeer et al. 2017) of all models of a family share."""

    scores: RouterScores
    """What the router makes of its logits: a softmax over all experts, or over the chosen ones alone; or a sigmoid of each."""
    renormalised: Stated
    """Whether the shares of the chosen experts are divided by their sum."""
    width: str
    """The field of config.json with an expert's intermediate size."""
    block: str = "mlp"
    """Name of the module in a decoder layer."""
    router: str = "gate"
    """Name of the router in that module."""
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    """Names of an expert's matrices: of gates, of ups, and the one that leads back."""
    dense_layers: Literal["none", "listed", "first"] = "none"
    """Which layers have no experts: none, those of `mlp_only_layers` and `decoder_sparse_step`, or the first `first_k_dense_replace`."""
    shared: bool = False
    """Whether beside the chosen experts there are some for all tokens, `n_shared_experts`."""
    fused: bool = False
    """Whether all experts of a layer are stored as one tensor a matrix, `[E, in, out]`, with biases, gates and ups in turn: as gpt-oss."""
    grouped: bool = False
    """Whether experts are chosen in the best `topk_group` of `n_group` groups, and shares are multiplied by `routed_scaling_factor`."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Properties that all models of a family share."""

    model_type: str
    """As config.json names the family."""
    architecture: str
    """The class of transformers that config.json lists under `architectures`."""
    qkv_bias: Stated
    out_bias: Stated
    mlp_bias: Stated
    tied: Stated = "tie_word_embeddings"
    """Whether the head is the embedding."""
    windows: Windows = "none"
    """Which layers have a sliding window: none, those that `use_sliding_window` switches on, all if a size is stated, all but every nth."""
    full_attention_every: int | None = None
    """With alternating windows, n: every nth layer has none. None: `sliding_window_pattern` of config.json says it."""
    qk_norm: QkNorm | None = None
    """RMSNorm of queries and keys before they are rotated: of each head, with one weight for all heads; of all heads together; or none."""
    has_qk_norm: Stated = True
    """Whether a model of a family with norms of queries and keys has them."""
    norm_kind: NormKind = "llama"
    """How RMSNorm takes its weight: after the cast from float32; before it; before it, as 1 + weight."""
    norms: tuple[tuple[str, NormPlace], ...] = (("input_layernorm", "before_attention"), ("post_attention_layernorm", "before_mlp"))
    """The norms of a decoder layer in transformers' order."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The field of config.json and the only value that is computed: silu, or gelu_pytorch_tanh."""
    multipliers: Multiplied = "none"
    """Factors of embeddings, residuals, scores and logits: none, stated in config.json, or those of Gemma."""
    has_softcaps: bool = False
    """Whether `attn_logit_softcapping` and `final_logit_softcapping` count: c · tanh(x / c) takes the place of a score or logit x."""
    has_sinks: bool = False
    """Whether each head has a logit of its own in the softmax of its attention."""
    has_layers_without_rope: bool = False
    """Whether `no_rope_layers` counts."""
    has_partial_rope: bool = False
    """Whether `partial_rotary_factor` may be below 1."""
    rope_pairs: Literal["halves", "neighbours"] = "halves"
    """Which elements of a head are turned together: i and i + half of those that are turned, or 2i and 2i + 1."""
    local_rope_theta: str = ""
    """The field with the base of layers with a window where no parameters of their own are stated, and nothing stretches it.

    Empty: they turn as the other layers do.
    """
    has_query_scale: bool = False
    """Whether the rotary embedding's `llama_4_scaling_beta` counts: queries grow with their position."""
    rope_kinds: tuple[str, ...] = _ROPE_KINDS
    linear_layers: tuple[str, ...] = _LINEAR_LAYERS
    """Names of a decoder layer's matrices, without those of experts."""
    experts: ExpertFamily | None = None
    """How its layers with experts are; None: it has none."""
    capabilities: frozenset[Capability] = frozenset({"embedded_engine", "batch_invariant", "lora"})
    server_lacks: frozenset[ServerLack] = frozenset()
    """What SGLang's class leaves out without a word where a model has it, and the trainer computes."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What transformers takes for a field that config.json lacks, where this differs from other families."""
    text_types: tuple[str, ...] = ()
    """Of a model with images, the `model_type`s of the text model, which `text_config` describes; empty: it is all of the model."""
    prefix: str = ""
    """Begins the name of every trained tensor in the folder; empty: nothing does."""
    not_computed: tuple[str, ...] = ()
    """Fields of config.json that must be missing, null or false."""

    @property
    def adapted_layers(self) -> tuple[str, ...]:
        """The layers that LoRA may target: all matrices, or those of attention where a layer may have experts."""
        return self.linear_layers if self.experts is None else _ATTENTION_LAYERS

    def fields(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What config.json says of the text model, over the defaults. Raises ModelError."""
        if not self.text_types:
            return {**self.defaults, **config}
        text = config.get("text_config")
        kind = text.get("model_type") if isinstance(text, dict) else None
        if not isinstance(text, dict) or kind not in self.text_types:
            raise ModelError(
                f"config.json has a text_config of model_type {reprlib.repr(kind)}, and {self.architecture} is trained with one of "
                f"{', '.join(self.text_types)}; choose another model"
            )
        tied = config.get("tie_word_embeddings")
        return {**MODEL_FAMILIES[kind].defaults, **text, **({} if tied is None else {"tie_word_embeddings": tied})}

    @property
    def head(self) -> str:
        """The folder's name of the language model's head."""
        return self.stored_name("lm_head.weight")

    @property
    def embedding(self) -> str:
        """The folder's name of the embedding of tokens."""
        return self.stored_name("model.embed_tokens.weight")

    def stored_name(self, name: str) -> str:
        """The folder's name of a tensor that the decoder calls `name`."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def own_name(self, stored: str) -> str:
        """What the decoder calls the tensor that the folder calls `stored`."""
        return stored.removeprefix(f"{self.prefix}.")

    def require(self, capability: Capability) -> None:
        """Raises ModelError unless the family has the capability."""
        if capability not in self.capabilities:
            able = _architectures_with(capability)
            raise ModelError(f"{capability} is not computed for {self.architecture}; choose a model of one of: {able}")

    def faults(self, rollout: RolloutSpec | None, numerics: str, lora: LoraSpec | None) -> Iterator[Fault]:
        """Faults of a run spec with these settings over a model of this family. `rollout` is None if nothing is sampled."""
        if rollout is not None and rollout.traits.embedded and "embedded_engine" not in self.capabilities:
            message = f"this engine runs in the worker's process and does not compute {self.architecture}"
            allowed = f"an engine that is a server, or a model of one of: {_architectures_with('embedded_engine')}"
            yield Fault("rollout.engine", message, rollout.engine, allowed)
        if numerics == "batch_invariant" and numerics not in self.capabilities:
            yield Fault("numerics", f"is not computed for {self.architecture}", numerics, "fast")
        if lora is None:
            return
        if "lora" not in self.capabilities:
            yield Fault("trainer.lora", f"adapters are not trained beside {self.architecture}", allowed="a spec without [trainer.lora]")
        unknown = [name for name in lora.target_modules if name not in self.adapted_layers]
        if unknown:
            reason = "has no such layers" if self.experts is None else "has experts, and adapters are trained beside attention only"
            message = f"{self.architecture} {reason}"
            yield Fault("trainer.lora.target_modules", message, ", ".join(unknown), ", ".join(self.adapted_layers))


def _architectures_with(capability: Capability) -> str:
    return ", ".join(family.architecture for family in MODEL_FAMILIES.values() if capability in family.capabilities)


def family_of(model_type: object) -> ModelFamily:
    """The family with this `model_type`; ModelError when none has it."""
    family = MODEL_FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ModelError(f"architecture {reprlib.repr(model_type)} is not supported; use one of {', '.join(sorted(MODEL_FAMILIES))}")
    return family


def family_of_architecture(architecture: object) -> ModelFamily | None:
    """The family of this architecture, or None."""
    return next((family for family in MODEL_FAMILIES.values() if family.architecture == architecture), None)


_NO_WINDOWS: Final[frozenset[ServerLack]] = frozenset({"windows"})
_WITHOUT_INVARIANT: Final[frozenset[Capability]] = frozenset({"embedded_engine", "lora"})
_GEMMA: Final[Mapping[str, Any]] = {
    "qkv_bias": "attention_bias",
    "out_bias": "attention_bias",
    "mlp_bias": False,
    "windows": "alternating",
    "norm_kind": "offset",
    "norms": (
        ("input_layernorm", "before_attention"),
        ("post_attention_layernorm", "after_attention"),
        ("pre_feedforward_layernorm", "before_mlp"),
        ("post_feedforward_layernorm", "after_mlp"),
    ),
    "activation": ("hidden_activation", "gelu_pytorch_tanh"),
    "multipliers": "gemma",
    "capabilities": _WITHOUT_INVARIANT,
}
_GPT_OSS_ROPE: Final[Mapping[str, Any]] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_MINISTRAL_ROPE: Final[Mapping[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "llama_4_scaling_beta": 0.1,
}
_OLMO: Final[Mapping[str, Any]] = {
    "qkv_bias": "attention_bias",
    "out_bias": "attention_bias",
    "mlp_bias": False,
    "qk_norm": "width",
    "norm_kind": "float32",
    "norms": (("post_attention_layernorm", "after_attention"), ("post_feedforward_layernorm", "after_mlp")),
    "capabilities": _WITHOUT_INVARIANT,
}

MODEL_FAMILIES: Final[Mapping[str, ModelFamily]] = {
    family.model_type: family
    for family in (
        ModelFamily(
            *("llama", "LlamaForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias="mlp_bias",
            server_lacks=frozenset({"mlp_bias"}),
        ),
        ModelFamily(
            *("qwen2", "Qwen2ForCausalLM"),
            qkv_bias=True,
            out_bias=False,
            mlp_bias=False,
            windows="optional",
            server_lacks=_NO_WINDOWS,
        ),
        ModelFamily(
            *("qwen3", "Qwen3ForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias=False,
            windows="optional",
            server_lacks=_NO_WINDOWS,
            qk_norm="head",
            defaults={"head_dim": 128},
        ),
        ModelFamily(
            *("mistral", "MistralForCausalLM"),
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            windows="everywhere",
            server_lacks=_NO_WINDOWS,
            defaults={"sliding_window": 4096},
        ),
        ModelFamily(
            *("ministral3", "Ministral3ForCausalLM"),
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            windows="everywhere",
            server_lacks=_NO_WINDOWS | {"growing_queries"},
            has_query_scale=True,
            defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "rope_parameters": _MINISTRAL_ROPE},
        ),
        ModelFamily(
            *("mistral3", "Mistral3ForConditionalGeneration"),
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            windows="everywhere",
            server_lacks=_NO_WINDOWS | {"growing_queries"},
            has_query_scale=True,
            text_types=("mistral", "ministral3"),
            prefix="language_model",
            capabilities=frozenset({"embedded_engine", "batch_invariant"}),
        ),
        ModelFamily(
            *("mixtral", "MixtralForCausalLM"),
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            windows="everywhere",
            server_lacks=_NO_WINDOWS,
            linear_layers=_ATTENTION_LAYERS,
            experts=ExpertFamily("softmax", True, "intermediate_size", "block_sparse_moe", matrices=("w1", "w3", "w2")),
            capabilities=_WITHOUT_INVARIANT,
            defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
        ),
        ModelFamily(
            *("qwen3_moe", "Qwen3MoeForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias=False,
            qk_norm="head",
            experts=ExpertFamily("softmax", "norm_topk_prob", "moe_intermediate_size", dense_layers="listed"),
            capabilities=_WITHOUT_INVARIANT,
            defaults={"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
            not_computed=("use_sliding_window",),
        ),
        ModelFamily(
            *("smollm3", "SmolLM3ForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias="mlp_bias",
            windows="optional",
            has_layers_without_rope=True,
            defaults={"tie_word_embeddings": True, "rope_theta": 2e6},
        ),
        ModelFamily(
            *("seed_oss", "SeedOssForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_out_bias",
            mlp_bias="mlp_bias",
            defaults={"attention_bias": True, "head_dim": 128},
        ),
        ModelFamily("olmo2", "Olmo2ForCausalLM", **_OLMO, defaults={"rms_norm_eps": 1e-5}),
        ModelFamily(
            *("olmo3", "Olmo3ForCausalLM"),
            **_OLMO,
            windows="alternating",
            full_attention_every=4,
            local_rope_theta="rope_theta",
            defaults={"rms_norm_eps": 1e-5, "rope_theta": 500_000.0},
        ),
        ModelFamily(
            *("gemma2", "Gemma2ForCausalLM"),
            **_GEMMA,
            full_attention_every=2,
            has_softcaps=True,
            defaults={
                "tie_word_embeddings": True,
                "head_dim": 256,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            },
            not_computed=("use_bidirectional_attention",),
        ),
        ModelFamily(
            *("gemma3_text", "Gemma3ForCausalLM"),
            **_GEMMA,
            qk_norm="head",
            local_rope_theta="rope_local_base_freq",
            defaults={"tie_word_embeddings": True, "head_dim": 256, "rope_theta": 1e6, "sliding_window_pattern": 6},
            not_computed=("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"),
        ),
        ModelFamily(
            *("granite", "GraniteForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias="mlp_bias",
            multipliers="stated",
            capabilities=_WITHOUT_INVARIANT,
        ),
        ModelFamily(
            *("phi3", "Phi3ForCausalLM"),
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
            windows="everywhere",
            server_lacks=_NO_WINDOWS,
            has_partial_rope=True,
            rope_kinds=("default", "longrope"),
            linear_layers=("o_proj", "qkv_proj", "gate_up_proj", "down_proj"),
            capabilities=_WITHOUT_INVARIANT,
            defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        ),
        ModelFamily(
            *("glm4_moe", "Glm4MoeForCausalLM"),
            qkv_bias="attention_bias",
            out_bias=False,
            mlp_bias=False,
            qk_norm="head",
            has_qk_norm="use_qk_norm",
            has_partial_rope=True,
            experts=ExpertFamily("sigmoid", "norm_topk_prob", "moe_intermediate_size", dense_layers="first", shared=True, grouped=True),
            capabilities=_WITHOUT_INVARIANT,
            defaults={
                "partial_rotary_factor": 0.5,
                "rms_norm_eps": 1e-5,
                "norm_topk_prob": True,
                "first_k_dense_replace": 1,
                "n_routed_experts": 128,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 1408,
                "n_shared_experts": 1,
            },
        ),
        ModelFamily(
            *("gpt_oss", "GptOssForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias=False,
            windows="alternating",
            full_attention_every=2,
            norm_kind="float32",
            has_sinks=True,
            linear_layers=_ATTENTION_LAYERS,
            experts=ExpertFamily("softmax_of_chosen", False, "intermediate_size", router="router", fused=True),
            capabilities=_WITHOUT_INVARIANT,
            defaults={
                "attention_bias": True,
                "head_dim": 64,
                "num_local_experts": 128,
                "num_experts_per_tok": 4,
                "rms_norm_eps": 1e-5,
                "rope_parameters": _GPT_OSS_ROPE,
                "rope_theta": 150_000.0,
                "sliding_window": 128,
            },
        ),
        ModelFamily(
            *("glm4", "Glm4ForCausalLM"),
            qkv_bias="attention_bias",
            out_bias=False,
            mlp_bias=False,
            norms=(
                ("input_layernorm", "before_attention"),
                ("post_attention_layernorm", "before_mlp"),
                ("post_self_attn_layernorm", "after_attention"),
                ("post_mlp_layernorm", "after_mlp"),
            ),
            has_partial_rope=True,
            rope_pairs="neighbours",
            linear_layers=("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
            capabilities=_WITHOUT_INVARIANT,
            defaults={"attention_bias": True, "head_dim": 128, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7},
        ),
    )
}
"""By `model_type`."""

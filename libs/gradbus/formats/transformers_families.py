"""The model families that transformers' own models compute, where Gradbus has no decoder for them. Neither torch nor transformers.

A family is listed if its model is causal and its logits are one matrix times the last hidden states, scaled and bounded at most. No
family of `MODEL_FAMILIES` is listed: it is computed by Gradbus's decoder.
tests/contract/test_transformers_families.py is the contract.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gradbus.errors import Fault, ModelError
from gradbus.formats.config_fields import flag, misstated, value_of

if TYPE_CHECKING:
    from gradbus.formats.model_families import Capability
    from gradbus.spec import LoraSpec, RolloutSpec

_ATTENTION: Final = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True)
class TransformersFamily:
    """A family that trainer and reference compute by transformers, and that a sampling server must serve."""

    model_type: str
    """As config.json names the family."""
    architecture: str
    """As config.json lists it under `architectures`."""
    attention_alone: bool
    """Whether tokens meet in attention alone, by a function that can be replaced: then sequences are packed."""
    tied: bool
    """Whether the head is the embedding where config.json does not say it."""
    inner: str = ""
    """The field of config.json with the text model's configuration; empty: config.json itself."""
    text_type: str = ""
    """The `model_type` of that field; empty: the same."""

    def text_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration of the text model, with the head that the whole model states. Raises ModelError."""
        found = config.get(self.inner) if self.inner else config
        if not isinstance(found, dict):
            raise ModelError(f"config.json has no {self.inner}, which {self.architecture} needs; save the model again with transformers")
        if self.inner and value_of(found, "model_type", self.text_type) != self.text_type:
            raise misstated(f"{self.inner}.model_type", found["model_type"])
        tied = config.get("tie_word_embeddings")
        return found if tied is None else {**found, "tie_word_embeddings": tied}

    def is_tied(self, config: Mapping[str, Any]) -> bool:
        """Whether the head is the embedding. Raises ModelError."""
        text = self.text_config(config)
        return self.tied if text.get("tie_word_embeddings") is None else flag(text, "tie_word_embeddings")

    def is_packed(self, config: Mapping[str, Any]) -> bool:
        """Whether sequences are packed. Layers with a state, such as `conv` or `linear_attention`, need one row for each sequence."""
        kinds = self.text_config(config).get("layer_types")
        return self.attention_alone and (not isinstance(kinds, list) or _ATTENTION.issuperset(map(str, kinds)))

    def require(self, capability: Capability) -> None:
        """Raises ModelError: families that transformers computes have no capability beyond training."""
        if capability == "embedded_engine":
            raise ModelError(f'the embedded engine does not sample {self.architecture}; set rollout.engine = "sglang"')
        raise ModelError(f"{capability} is not computed for {self.architecture}; choose a model of one of the families of docs/families.md")

    def faults(self, rollout: RolloutSpec | None, numerics: str, lora: LoraSpec | None) -> Iterator[Fault]:
        """Faults of a run spec with these settings over a model of this family. `rollout` is None if nothing is sampled."""
        if rollout is not None and rollout.traits.embedded:
            message = f"this engine runs in the worker's process and does not sample {self.architecture}, which transformers computes"
            yield Fault("rollout.engine", message, rollout.engine, 'an engine that is a server and serves the model: "sglang"')
        if numerics != "fast":
            yield Fault("numerics", f"is not computed for {self.architecture}", numerics, "fast")
        if lora is not None:
            yield Fault("trainer.lora", f"adapters are not trained beside {self.architecture}", allowed="a spec without [trainer.lora]")


_PACKED: Final[Mapping[str, str]] = {
    "afmoe": "AfmoeForCausalLM",
    "apertus": "ApertusForCausalLM",
    "arcee": "ArceeForCausalLM",
    "aria_text": "AriaTextForCausalLM",
    "biogpt": "BioGptForCausalLM",
    "bitnet": "BitNetForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "cohere2_moe": "Cohere2MoeForCausalLM",
    "cwm": "CwmForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "diffllama": "DiffLlamaForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "exaone_moe": "ExaoneMoeForCausalLM",
    "flex_olmo": "FlexOlmoForCausalLM",
    "gemma": "GemmaForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoeshared": "GraniteMoeSharedForCausalLM",
    "helium": "HeliumForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "jais2": "Jais2ForCausalLM",
    "jetmoe": "JetMoeForCausalLM",
    "kolibri1": "Kolibri1ForCausalLM",
    "laguna": "LagunaForCausalLM",
    "mellum": "MellumForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "ministral": "MinistralForCausalLM",
    "nanochat": "NanoChatForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "opt": "OPTForCausalLM",
    "persimmon": "PersimmonForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "solar_open": "SolarOpenForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "vaultgemma": "VaultGemmaForCausalLM",
    "youtu": "YoutuForCausalLM",
}
"""Families whose tokens meet in attention alone."""
_ROWS: Final[Mapping[str, str]] = {
    "bamba": "BambaForCausalLM",
    "bloom": "BloomForCausalLM",
    "doge": "DogeForCausalLM",
    "falcon": "FalconForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
    "flint": "FlintForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "gpt_neox_japanese": "GPTNeoXJapaneseForCausalLM",
    "granite_swa": "GraniteSWAForCausalLM",
    "granitemoe_swa": "GraniteMoeSWAForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "jamba": "JambaForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "lfm3": "Lfm3ForCausalLM",
    "longcat_flash": "LongcatFlashForCausalLM",
    "mamba": "MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "minimax": "MiniMaxForCausalLM",
    "mpt": "MptForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo_hybrid": "OlmoHybridForCausalLM",
    "openai-gpt": "OpenAIGPTLMHeadModel",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "recurrent_gemma": "RecurrentGemmaForCausalLM",
    "rwkv": "RwkvForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "xglm": "XGLMForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
}
"""Families with layers that have a state, with attention sinks or position biases, or whose attention cannot be replaced."""
_TIED: Final = frozenset(
    {
        "biogpt",
        "bloom",
        "cohere",
        "cohere2",
        "cohere2_moe",
        "ernie4_5",
        "ernie4_5_moe",
        "falcon",
        "falcon_mamba",
        "gemma",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox_japanese",
        "granite_swa",
        "jetmoe",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "mamba",
        "minicpm3",
        "mpt",
        "openai-gpt",
        "opt",
        "recurrent_gemma",
        "starcoder2",
        "vaultgemma",
        "xglm",
        "youtu",
        "zamba2",
    }
)
"""Families whose head is the embedding by default."""
_INNER: Final[Mapping[str, tuple[str, str]]] = {
    "qwen3_5": ("Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
    "qwen3_5_moe": ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"),
}
"""Models of images and text: the architecture, and the family of the text model, which is trained."""

TRANSFORMERS_FAMILIES: Final[Mapping[str, TransformersFamily]] = {
    **{name: TransformersFamily(name, architecture, True, name in _TIED) for name, architecture in _PACKED.items()},
    **{name: TransformersFamily(name, architecture, False, name in _TIED) for name, architecture in _ROWS.items()},
    **{name: TransformersFamily(name, cls, False, text in _TIED, "text_config", text) for name, (cls, text) in _INNER.items()},
}
"""By `model_type`."""


def transformers_family_of(architecture: object) -> TransformersFamily | None:
    """The family of this architecture, or None."""
    return next((family for family in TRANSFORMERS_FAMILIES.values() if family.architecture == architecture), None)

"""The model families that can be trained: how they differ, and what is supported for each. No torch.

A family is an entry of `MODEL_FAMILIES`. The check of a model folder, the reading of config.json (`gradbus.formats.model_config`),
the batch-invariant forward, the embedded engine and LoRA ask the entry; none of them compares a model type.

To add a family whose forward is that of Llama's decoder (RMSNorm, rotary grouped-query attention, SwiGLU, a linear head):

1. Add its `ModelFamily` to `MODEL_FAMILIES`. For a difference that no field describes, add a field here, a value of `ModelConfig`, its
   tensors in `tensor_shapes` and the code in `gradbus_kernels.models.decoder`. If `gradbus_kernels.models.invariant_decoder` or the
   embedded engine (`gradbus_rollout.engines.torch`) does not compute it, leave out the capabilities `batch_invariant` or
   `embedded_engine`.
2. Add its variants to the tiny models in the conftest.py of tests/unit/kernels and tests/unit/rollout: the tests there compare all of
   them with transformers. The contract test of a family is tests/unit/kernels/models/test_model_families.py.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from gradbus.errors import Fault, ModelError

if TYPE_CHECKING:
    from gradbus.spec import LoraSpec, RolloutSpec

Capability = Literal["embedded_engine", "batch_invariant", "lora"]
"""Sampling by the embedded engine, `numerics = "batch_invariant"`, training of LoRA adapters."""

Stated = bool | str
"""A property of all models of a family, or the field of config.json that states it (false where the field is missing)."""

QkNorm = Literal["head"]

_ROPE_KINDS: Final = ("default", "linear", "llama3", "yarn")
_LINEAR_LAYERS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


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
    sliding_window: bool = False
    """Whether the fields of config.json about a sliding window count."""
    qk_norm: QkNorm | None = None
    """RMSNorm of queries and keys before they are rotated: of each head, with one weight for all heads; or none."""
    rope_kinds: tuple[str, ...] = _ROPE_KINDS
    linear_layers: tuple[str, ...] = _LINEAR_LAYERS
    """Names of a decoder layer's matrices: the layers that LoRA may target."""
    capabilities: frozenset[Capability] = frozenset({"embedded_engine", "batch_invariant", "lora"})
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What transformers takes for a field that config.json lacks, where this differs from other families."""

    def require(self, capability: Capability) -> None:
        """Raises ModelError unless the family has the capability."""
        if capability not in self.capabilities:
            able = _architectures_with(capability)
            raise ModelError(f"{capability} is not computed for {self.architecture}; choose a model of one of: {able}")

    def faults(self, rollout: RolloutSpec, numerics: str, lora: LoraSpec | None) -> Iterator[Fault]:
        """Faults of a run spec with these settings over a model of this family."""
        if rollout.traits.embedded and "embedded_engine" not in self.capabilities:
            message = f"this engine runs in the worker's process and does not compute {self.architecture}"
            allowed = f"an engine that is a server, or a model of one of: {_architectures_with('embedded_engine')}"
            yield Fault("rollout.engine", message, rollout.engine, allowed)
        if numerics == "batch_invariant" and numerics not in self.capabilities:
            yield Fault("numerics", f"is not computed for {self.architecture}", numerics, "fast")
        if lora is None:
            return
        if "lora" not in self.capabilities:
            yield Fault("trainer.lora", f"adapters are not trained beside {self.architecture}", allowed="a spec without [trainer.lora]")
        unknown = [name for name in lora.target_modules if name not in self.linear_layers]
        if unknown:
            message = f"{self.architecture} has no such layers"
            yield Fault("trainer.lora.target_modules", message, ", ".join(unknown), ", ".join(self.linear_layers))


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


MODEL_FAMILIES: Final[Mapping[str, ModelFamily]] = {
    family.model_type: family
    for family in (
        ModelFamily("llama", "LlamaForCausalLM", qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
        ModelFamily("qwen2", "Qwen2ForCausalLM", qkv_bias=True, out_bias=False, mlp_bias=False, sliding_window=True),
        ModelFamily(
            *("qwen3", "Qwen3ForCausalLM"),
            qkv_bias="attention_bias",
            out_bias="attention_bias",
            mlp_bias=False,
            sliding_window=True,
            qk_norm="head",
            defaults={"head_dim": 128},
        ),
    )
}
"""By `model_type`."""

"""The memory of a run by tenant. The equations are on docs/plan.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gradbus.algorithms import needs_reference_logprobs
from gradbus.formats.model_config import ModelConfig
from gradbus.plan.cards import ON_GPU, ProcessMemory
from gradbus.plan.model_size import ModelSize, adapter_parameters
from gradbus.plan.workload import Workload
from gradbus.spec import RunSpec

_WIDTH: Final = {"fp32": 4, "bf16": 2}
"""Bytes of an element by dtype."""
_FLOAT: Final = 4
_MOMENTS: Final = 8
_EMBEDDED_STEP: Final = 256
"""Positions by which the embedded engine's cache grows at least."""


class Part(NamedTuple):
    """A part of a tenant's memory."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process on a card."""

    name: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """All of its memory."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Bill:
    """What the processes of a run have on cards; the memory of each is its largest."""

    spec: RunSpec
    config: ModelConfig
    size: ModelSize
    """Of the model."""
    workload: Workload
    process: ProcessMemory
    ranks: int = 1
    """Cards of the trainer."""

    @classmethod
    def of(cls, spec: RunSpec, config: ModelConfig, workload: Workload, process: ProcessMemory = ON_GPU) -> Bill:
        """With one card for the trainer."""
        return cls(spec, config, ModelSize.of(config), workload, process)

    @property
    def version_width(self) -> int:
        """Bytes of an element of a published version."""
        return _WIDTH[self.spec.version_dtype]

    @property
    def trained(self) -> int:
        """Parameters that the optimiser updates."""
        lora = self.spec.trainer.lora
        return self.size.parameters if lora is None else adapter_parameters(self.config, lora)

    @property
    def trainer(self) -> Tenant:
        """The trainer, or each of its ranks."""
        return Tenant("trainer", tuple(part for part in self._trainer() if part.bytes))

    @property
    def engine(self) -> Tenant | None:
        """The engine; None: a run on given responses samples nothing."""
        return None if self.spec.trains_given else Tenant("engine", tuple(self._engine()))

    @property
    def reference(self) -> Tenant | None:
        """The reference service, for log-probabilities of a version or the base model; None: nobody asks for them.

        Teachers and reward models are beside it.
        """
        if not needs_reference_logprobs(self.spec) and self.spec.algorithm.centering is None:
            return None
        width, budget = _WIDTH[self.spec.trainer.dtype], self.spec.trainer.micro_batch_tokens
        parts = Part("weights", width * self.size.parameters), Part("one layer's activations", width * budget * self.size.kept_by_one)
        return Tenant("reference", (*parts, Part("logits", self.process.logits), Part("CUDA", self.process.context)))

    def _trainer(self) -> Iterator[Part]:
        trainer, size = self.spec.trainer, self.size
        width, sharded = _WIDTH[trainer.dtype], self.ranks
        stage = trainer.deepspeed.zero_stage if trainer.backend == "deepspeed" else 0
        offloaded = trainer.deepspeed.offload if trainer.backend == "deepspeed" else "none"
        of_moments, of_gradients, of_weights = (sharded if stage >= least else 1 for least in (1, 2, 3))
        rounded = trainer.dtype != "fp32" or trainer.lora is not None
        if rounded:
            yield Part(f"weights, {trainer.dtype}", 0 if offloaded == "all" else width * size.parameters // of_weights)
        masters = _FLOAT * self.trained // (of_moments if rounded else of_weights)
        yield Part("weights, float32", 0 if offloaded != "none" and rounded else masters)
        yield Part("moments, float32", 0 if offloaded != "none" else _MOMENTS * self.trained // of_moments)
        yield from self._passes(Part("gradients, float32", _FLOAT * self.trained // of_gradients), width)
        if (critic := trainer.critic) is not None and critic.kind == "full":
            yield Part("critic: weights, moments, gradients", (2 * _FLOAT + _MOMENTS) * size.body)
        yield Part("CUDA", self.process.context)

    def _passes(self, gradients: Part, width: int) -> Iterator[Part]:
        """Gradients, and what a forward pass keeps.

        A backward pass frees the second while it makes the first, so both are there at once only if a step has several micro-batches.
        """
        kept = (*self._activations(width), *self._head(width))
        if self.step_tokens > self.packed or gradients.bytes < sum(part.bytes for part in kept):
            yield from kept
        if self.step_tokens > self.packed or gradients.bytes >= sum(part.bytes for part in kept):
            yield gradients

    @property
    def group_size(self) -> int:
        """Responses of a group: of a run on given responses those of a row."""
        if not self.spec.trains_given:
            return self.spec.rollout.group_size
        return 1 if self.spec.kind == "sft" else 2

    @property
    def head(self) -> int:
        """Elements of the head that hidden states are multiplied by; a reward model's are too few to count."""
        return 0 if self.spec.kind == "reward_model" else self.size.embedding

    @property
    def step_tokens(self) -> int:
        """Packed tokens of a step, of each rank: prompts once a group."""
        group = self.workload.prompt + self.group_size * self.workload.response
        return self.spec.schedule.groups_per_step * group // self.ranks

    @property
    def packed(self) -> int:
        """Tokens of a micro-batch."""
        drawn = self.workload.response if self.spec.trains_given else self.spec.max_drawn_tokens
        longest = self.workload.prompt + drawn
        return max(longest, min(self.spec.trainer.micro_batch_tokens, self.step_tokens))

    def _activations(self, width: int) -> Iterator[Part]:
        size = self.size
        if self.spec.trainer.gradient_checkpointing:
            kept = size.layers * size.hidden + size.kept_by_one
            yield Part("activations, computed again by layer", width * self.packed * kept)
            return
        yield Part("activations", width * self.packed * size.kept)
        yield Part("matrices side by side", width * size.joined if self.spec.trainer.lora is None else 0)

    def _head(self, width: int) -> Iterator[Part]:
        """The rows that the head takes, their gradients, and the head's own, added up in float32; logits exist some at a time.

        When they are gone, the gradients of the last layer come.
        """
        drawn = self.workload.response * self.group_size
        rows = self.packed * drawn // (self.workload.prompt + drawn)
        wide = _FLOAT + (width if width < _FLOAT else 0)
        logits = min(self.process.logits, rows * wide * self.head // self.size.hidden)
        largest = max(logits, width * self.packed * self.size.kept_by_one)
        gradient = wide * self.head if self.spec.trainer.lora is None else 0
        yield Part("logits and the head's gradient", largest + gradient + 2 * width * rows * self.size.hidden)

    def _engine(self) -> Iterator[Part]:
        rollout, size = self.spec.rollout, self.size
        embedded = rollout.traits.embedded
        width = _FLOAT if embedded and self.spec.trainer.lora is not None else self.version_width
        longest = min(self.config.context_length, self.workload.prompt + self.spec.max_drawn_tokens)
        length = -(-longest // _EMBEDDED_STEP) * _EMBEDDED_STEP if embedded else self.workload.prompt + self.workload.response
        yield Part("weights", width * size.parameters)
        yield Part(f"keys and values of {rollout.slots} samples", width * size.cached * rollout.slots * length)
        yield Part("logits", 2 * _FLOAT * rollout.slots * self.config.vocab_size)
        yield Part("CUDA and graphs", 2 * self.process.context)

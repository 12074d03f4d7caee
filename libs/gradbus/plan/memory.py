"""The memory of a run by tenant. The equations are on docs/plan.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from gradbus.algorithms import needs_reference_logprobs
from gradbus.plan import embedded_cache
from gradbus.plan.cards import ON_GPU, WIDTH, ProcessMemory
from gradbus.plan.heap import unused_in_heap
from gradbus.plan.model_size import ModelSize
from gradbus.plan.workload import Workload
from gradbus.spec import RunSpec

_FLOAT: Final = 4
_MOMENTS: Final = 8
_WIDENED: Final = 1 << 15
"""Elements of a model's largest weight up to which the embedded engine computes in float32 on a CPU."""
_PORTIONS: Final = 4
"""Of a step for each thread of a CPU that computes micro-batches beside others."""


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
    size: ModelSize
    """Of the model."""
    workload: Workload
    process: ProcessMemory
    ranks: int = 1
    """Cards of the trainer."""

    @classmethod
    def of(cls, spec: RunSpec, size: ModelSize, workload: Workload, process: ProcessMemory = ON_GPU) -> Bill:
        """With one card for the trainer."""
        return cls(spec, size, workload, process)

    @property
    def version_width(self) -> int:
        """Bytes of an element of a published version."""
        return WIDTH[self.spec.version_dtype]

    @property
    def engine_dtype(self) -> str:
        """Of the engine's weights and of its keys and values."""
        embedded = self.spec.rollout.traits.embedded
        if not embedded:
            return self.spec.version_dtype
        merged, small = self.spec.trainer.lora is not None, self.process.on_cpu and self.size.largest <= _WIDENED
        widened = self.process.widens and self.spec.numerics == "fast"
        return "fp32" if merged or small or widened else self.spec.trainer.dtype

    @property
    def trained(self) -> int:
        """Parameters that the optimiser updates."""
        lora = self.spec.trainer.lora
        return self.size.parameters if lora is None else self.size.adapter_parameters(lora)

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
        width, budget = WIDTH[self.spec.trainer.dtype], self.spec.trainer.micro_batch_tokens
        parts = Part("weights", width * self.size.parameters), Part("one layer's activations", width * budget * self.size.kept_by_one)
        return Tenant("reference", (*parts, Part("logits", self._logits(budget, _FLOAT)), self._of_process))

    @property
    def _of_process(self) -> Part:
        return Part("compiled products, stacks" if self.process.on_cpu else "CUDA", self.process.context)

    def _trainer(self) -> Iterator[Part]:
        trainer, size = self.spec.trainer, self.size
        width, sharded = WIDTH[trainer.dtype], self.ranks
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
        yield from self._critic()
        yield self._of_process

    def _critic(self) -> Iterator[Part]:
        """A copy of the base model in float32, and what its optimiser keeps of what is trained; a value head is too small to count.

        Adapters of both stand beside one base model if it is frozen in float32.
        """
        critic = self.spec.trainer.critic
        if critic is None or critic.kind == "head":
            return
        adapters = critic.adapters
        trained = self.size.body if adapters is None else self.size.adapter_parameters(adapters)
        shares = adapters is not None and self.spec.trainer.lora is not None and self.spec.trainer.dtype == "fp32"
        yield Part("critic: weights", _FLOAT * ((0 if shares else self.size.parameters) + (trained if adapters else 0)))
        yield Part("critic: moments, gradients", (_MOMENTS + _FLOAT) * trained)

    def _passes(self, gradients: Part, width: int) -> Iterator[Part]:
        """Gradients, and what a forward pass keeps.

        A backward pass frees the second while it makes the first, so both are there at once only if a step has several micro-batches.
        """
        kept = [Part(part.name, self.side_by_side * part.bytes) for part in (*self._activations(width), *self._head(width))]
        several = self.step_tokens > self.packed
        if several or gradients.bytes < sum(part.bytes for part in kept):
            yield from kept
        if several or gradients.bytes >= sum(part.bytes for part in kept):
            yield gradients
        if self.side_by_side > 1:
            yield Part("gradients of each thread", self.side_by_side * width * self.trained)
        if self.process.on_cpu:
            yield Part("unused in the heap", self._unused(width))

    def _unused(self, width: int) -> int:
        trainer, tensors = self.spec.trainer, self.size.kept
        if trainer.gradient_checkpointing:
            tensors = (max(tensors, key=sum), (self.size.hidden,) * self.size.layers)
        of_one = [width * self.packed * elements for layer in tensors for elements in layer]
        return unused_in_heap(of_one * self.side_by_side, trainer.lora is not None)

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
    def side_by_side(self) -> int:
        """Micro-batches that a trainer on a CPU computes at a time, one in each of its threads."""
        return self.spec.trainer.threads if self.process.on_cpu and self.spec.numerics == "fast" else 1

    @property
    def packed(self) -> int:
        """Tokens of a micro-batch."""
        drawn = self.workload.response if self.spec.trains_given else self.spec.max_drawn_tokens
        longest = self.workload.longest + drawn
        portions = _PORTIONS * self.side_by_side if self.side_by_side > 1 else 1
        return max(longest, min(self.spec.trainer.micro_batch_tokens, self.step_tokens // portions))

    def _activations(self, width: int) -> Iterator[Part]:
        size = self.size
        if self.spec.trainer.gradient_checkpointing:
            kept = size.layers * size.hidden + size.kept_by_one
            yield Part("activations, computed again by layer", width * self.packed * kept)
            return
        yield Part("activations", width * self.packed * size.kept_by_all)
        yield Part("matrices side by side", width * size.joined if self.spec.trainer.lora is None else 0)

    def _head(self, width: int) -> Iterator[Part]:
        """The rows that the head takes, their gradients, and the head's own, added up in float32; logits exist some at a time.

        When they are gone, the gradients of the last layer come.
        """
        drawn = self.workload.response * self.group_size
        rows = self.packed * drawn // (self.workload.prompt + drawn)
        wide = _FLOAT + (width if width < _FLOAT else 0)
        largest = max(self._logits(rows, wide), width * self.packed * self.size.kept_by_one)
        gradient = wide * self.head if self.spec.trainer.lora is None else 0
        yield Part("logits and the head's gradient", largest + gradient + 2 * width * rows * self.size.hidden)

    def _logits(self, rows: int, width: int) -> int:
        """Bytes of the logits of so many tokens that exist at a time."""
        return min(self.process.logits, min(rows, self.process.rows or rows) * width * self.head // self.size.hidden)

    def _kept_between_turns(self, position: int) -> int:
        """At most what the worker may keep, and no more than a step's samples of one version have."""
        group = self.workload.prompt + self.spec.rollout.group_size * self.spec.max_drawn_tokens
        return min(embedded_cache.KEPT_BETWEEN_TURNS, position * self.spec.schedule.groups_per_step * group)

    @property
    def _files_of_a_version(self) -> int:
        """Bytes that a load maps: of the version, and with adapters of the base model, into which it merges them."""
        base = 0 if self.spec.trainer.lora is None else self.size.stored_width * self.size.parameters
        return self.version_width * self.trained + base

    def _engine(self) -> Iterator[Part]:
        rollout, size = self.spec.rollout, self.size
        slots, width = rollout.slots, WIDTH[self.engine_dtype]
        position = width * size.cached
        longest = min(size.context_length, self.workload.longest + self.spec.max_drawn_tokens)
        yield Part("weights", width * size.parameters)
        samples = f"keys and values of {slots} samples"
        if not rollout.traits.embedded:
            yield Part(samples, position * slots * (self.workload.prompt + self.workload.response))
        else:
            capacity = (embedded_cache.paged if self.process.on_cpu else embedded_cache.in_one_piece)(longest)
            yield Part(samples, position * slots * capacity)
            prompts = embedded_cache.paged(self.workload.longest) if self.process.on_cpu else self.workload.longest
            yield Part("keys and values of the next prompts", position * embedded_cache.lanes(slots) * prompts)
            if self.spec.environment is not None:
                yield Part("kept between turns", self._kept_between_turns(position))
            if self.process.on_cpu:
                grows = position * slots * embedded_cache.before(capacity)
                yield Part("while it grows or loads a version", max(grows, self._files_of_a_version))
        yield Part("logits", 2 * _FLOAT * slots * size.vocabulary)
        yield self._of_process if self.process.on_cpu else Part("CUDA and graphs", 2 * self.process.context)

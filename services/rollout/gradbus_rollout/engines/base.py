"""`Engine`: the Protocol of all sampling engines. Prompts in, tokens with log-probabilities and versions out.

A call asks for whole groups, not for a batch: an engine batches concurrent calls as it likes. Where `EngineTraits.deterministic`
holds, a sample depends on nothing but the weights, the prompt and the sample's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, Self

from gradbus.errors import ModelError
from gradbus.formats.model_config import ModelConfig
from gradbus.formats.tokens import unpack_ids, unpack_logprobs
from gradbus.telemetry import Interval
from gradbus.v1 import weights_pb2


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """One prompt and how many samples to draw from it."""

    key: str
    """Returned with the completions; the engine does not read it."""
    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    """One for each sample, 63 bits."""
    greedy: int = 0
    """How many samples, the last ones, take the likeliest token each time, as evaluation does. Their seeds only count them."""
    max_new_tokens: int | None = None
    """Of each sample, at most the engine's; None: the engine's. Fewer leave room for a longer prompt."""

    def is_greedy(self, n: int) -> bool:
        """Whether sample `n` takes the likeliest tokens."""
        return n >= len(self.seeds) - self.greedy


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Policy `version` drew the response tokens from `start` to `end` (exclusive)."""

    start: int
    end: int
    version: int


@dataclass(slots=True)
class Completion:
    """One sample. Never changed, and not frozen only because a step makes many."""

    token_ids: tuple[int, ...]
    """Response tokens `[T]`, including a final stop token."""
    logprobs: bytes
    """float32 `[T]`, little-endian: log-softmax at the engine's temperature, of each token when it was drawn."""
    spans: tuple[TokenSpan, ...]
    """Spans that cover `[0, T)` without gaps."""
    finish: Literal["stop", "length"]
    times: Interval | None = field(default=None, compare=False)
    """Begin and end of its decoding, in nanoseconds since 1970; None if the engine does not know."""
    prompt_routes: bytes = b""
    """Experts of the prompt's tokens, as `Group.routed_experts` has them; at least one sample of a group has them."""
    routes: bytes = b""
    """Experts of the response tokens, as `Sample.routed_experts` has them. Both are empty unless the run replays routes."""

    def first(self, count: int) -> Completion:
        """Its first tokens, as an engine draws them that stops there; without routes, which end with its last token."""
        spans = tuple(TokenSpan(span.start, min(span.end, count), span.version) for span in self.spans if span.start < count)
        return Completion(self.token_ids[:count], self.logprobs[: 4 * count], spans, "stop", self.times)


@dataclass(frozen=True, slots=True)
class RouteShape:
    """The routes of a model's tokens."""

    layers: tuple[int, ...]
    """The decoder layers with experts."""
    all_layers: int
    experts: int
    """In each of `layers`."""
    chosen: int
    """Of them, for each token."""

    @classmethod
    def of(cls, config: ModelConfig) -> Self:
        """The model's. Raises ModelError for one without experts."""
        if config.experts is None:
            raise ModelError(f"{config.family.architecture} has no experts; set rollout.routing_replay = false")
        return cls(tuple(sorted(config.experts.layers)), config.layers, config.experts.count, config.experts.chosen)


@dataclass(frozen=True, slots=True)
class GroupCompletion:
    """All samples of one group, in the order of its seeds."""

    key: str
    completions: tuple[Completion, ...]
    prefill: Interval | None = field(default=None, compare=False)
    """Begin and end of the prefill for all its samples; None if the engine does not know."""
    routed: RouteShape | None = None
    """Set if the samples have routes."""


@dataclass(frozen=True, slots=True)
class ExpectedLogprobs:
    """The trainer's log-probabilities of a fixed text: of all tokens but the first, at temperature 1."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """With the version's weights."""
    base_logprobs: tuple[float, ...]
    """Without its adapters."""

    @classmethod
    def of(cls, message: weights_pb2.VersionProbe) -> Self:
        """Decodes the probe of a manifest."""
        return cls(unpack_ids(message.token_ids), unpack_logprobs(message.logprobs), unpack_logprobs(message.base_logprobs))


class Engine(Protocol):
    """Samples from one policy version at a time."""

    @property
    def name(self) -> str:
        """Everything that decides bits besides the weights, e.g. `torch 2.13.0 cpu float32`. The first word is the engine's name."""
        ...

    @property
    def version(self) -> int | None:
        """The version loaded; None before the first load."""
        ...

    async def progress(self) -> int:
        """A count that grows while the engine makes progress on its work: steps, replies, loads. Returns at once."""
        ...

    async def load(self, weights: Sequence[Path], version: int, probe: ExpectedLogprobs | None = None) -> str:
        """Sample from `version` from the next token on. Returns the digest of the weights that the engine now has.

        `weights` are safetensors files that together have every tensor of the version: all weights, or the adapters of a LoRA
        run. Samples in flight continue with the new weights in a new span; with adapters served beside the base they finish on the
        old ones. A caller that wants samples of one version awaits its `generate` calls first. An engine whose tensors
        cannot be compared checks `probe`.

        Raises ModelError, before any change, for tensors that are missing, unknown or of another shape.
        """
        ...

    async def generate(self, groups: Sequence[PromptGroup]) -> Sequence[GroupCompletion]:
        """Sample every group to its end; results are in the order of `groups`. Calls may overlap; a cancelled call frees its slots.

        Raises ModelError before the first load, for prompts that are empty or too long, and when the engine broke.
        """
        ...

    async def release(self) -> None:
        """Stop drawing tokens and free the device's memory; returns when it is free.

        Samples in flight wait. They go on after the next `load`, which takes the memory again, and whose version may be the same.
        """
        ...

    async def close(self) -> None:
        """Stop; calls in flight end with ModelError."""
        ...


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What an engine takes."""

    context_length: int
    vocab_size: int
    max_new_tokens: int
    max_prompt_tokens: int | None = None
    """Of a group that sets no `max_new_tokens`; None: as many as the context has room for."""

    @property
    def longest_prompt(self) -> int:
        """Length of the longest prompt that leaves room for a response of `max_new_tokens`."""
        room = self.context_length - self.max_new_tokens
        return room if self.max_prompt_tokens is None else min(room, self.max_prompt_tokens)


def check_group(group: PromptGroup, limits: GroupLimits) -> None:
    """Raises ModelError for a group that an engine of these limits cannot sample."""
    if group.max_new_tokens is None:
        max_prompt_tokens = limits.longest_prompt
    elif 1 <= group.max_new_tokens <= limits.max_new_tokens:
        max_prompt_tokens = limits.context_length - group.max_new_tokens
    else:
        raise ModelError(
            f"group {group.key!r} asks for {group.max_new_tokens} tokens, allowed are 1 to {limits.max_new_tokens}; ask for fewer"
        )
    length, vocab_size = len(group.prompt_ids), limits.vocab_size
    if not 1 <= length <= max_prompt_tokens:
        raise ModelError(f"the prompt of group {group.key!r} has {length} tokens, allowed are 1 to {max_prompt_tokens}; shorten it")
    if not 0 <= min(group.prompt_ids) <= max(group.prompt_ids) < vocab_size:
        raise ModelError(f"the prompt of group {group.key!r} has ids outside the model's vocabulary; use the model's own tokenizer")
    if not group.seeds:
        raise ModelError(f"group {group.key!r} asks for no sample; give one seed a sample")

"""The seam between the worker and whatever samples: prompts in, tokens with versions out.

Requests are whole groups, not batches: an engine joins concurrent calls as it likes. What it must not do
is let a sample depend on anything but the weights, the prompt and the sample's seed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from gradbus.errors import ModelError
from gradbus.telemetry import Interval
from gradbus.v1 import weights_pb2


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """One prompt and how many samples to draw from it."""

    key: str
    """Handed back with the completions; the engine does not read it."""
    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    """One a sample, 63 bits each."""
    greedy: bool = False
    """Take the likeliest token (evaluation); seeds then only count the samples."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Response tokens `start` to `end` (exclusive) came from policy `version`."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One sample."""

    token_ids: tuple[int, ...]
    """`[T]` response tokens; a stop token is the last of them."""
    logprobs: bytes
    """Little-endian float32 `[T]`: log-softmax at the engine's temperature, of each token when it was drawn."""
    spans: tuple[TokenSpan, ...]
    """Cover `[0, T)` without gaps."""
    finish: Literal["stop", "length"]
    times: Interval | None = field(default=None, compare=False)
    """When its decoding began and ended, in nanoseconds since 1970, if the engine can tell."""


@dataclass(frozen=True, slots=True)
class GroupCompletion:
    """All samples of one group, in the order of its seeds."""

    key: str
    completions: tuple[Completion, ...]
    prefill: Interval | None = field(default=None, compare=False)
    """When its prompt was computed for all its samples, if the engine can tell."""


@dataclass(frozen=True, slots=True)
class VersionProbe:
    """What the trainer computes for a fixed text: log-probabilities of its tokens but the first, at temperature 1."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """With the version's weights."""
    base_logprobs: tuple[float, ...]
    """Without its adapters."""

    @classmethod
    def of(cls, message: weights_pb2.VersionProbe) -> Self:
        """As it came in a manifest."""
        return cls(_numbers("i", message.token_ids), _numbers("f", message.logprobs), _numbers("f", message.base_logprobs))


def _numbers(kind: Literal["i", "f"], content: bytes) -> tuple[Any, ...]:
    """Little-endian, four bytes each."""
    return struct.unpack(f"<{len(content) // 4}{kind}", content)


class Engine(Protocol):
    """Samples from one policy version at a time."""

    @property
    def name(self) -> str:
        """What decides bits besides the weights, e.g. `torch 2.13.0 cpu float32`."""
        ...

    @property
    def version(self) -> int | None:
        """The version held; None before the first load."""
        ...

    async def progress(self) -> int:
        """A count that grows for as long as the engine, having work, gets anywhere: steps, answers, loads. Answers at once."""
        ...

    async def load(self, weights: Sequence[Path], version: int, probe: VersionProbe | None = None) -> str:
        """Hold `version` from the next token on; returns the digest of what the engine now holds.

        `weights` are safetensors files that together hold every tensor of the version: weights or, of a run that trains
        adapters, these. Samples in flight go on, with a new span, or to their end with the adapters that they began with; a
        caller that wants them unmixed awaits its `generate` calls first. Raises ModelError, before anything has changed, for
        tensors that are missing, unknown or of another shape. `probe` is for an engine that cannot read back what it holds.
        """
        ...

    async def generate(self, groups: Sequence[PromptGroup]) -> Sequence[GroupCompletion]:
        """Sample every group to its end, in the order given. Calls may overlap; a cancelled call frees its slots.

        Raises ModelError before the first load, for prompts that are empty or too long, and when the engine broke.
        """
        ...

    async def close(self) -> None:
        """Stop; calls in flight end with ModelError."""
        ...


def check_group(group: PromptGroup, max_prompt_tokens: int, vocab_size: int) -> None:
    """Raises ModelError for a group that no engine can sample."""
    length = len(group.prompt_ids)
    if not 1 <= length <= max_prompt_tokens:
        raise ModelError(f"the prompt of group {group.key!r} has {length} tokens, allowed are 1 to {max_prompt_tokens}; shorten it")
    if not 0 <= min(group.prompt_ids) <= max(group.prompt_ids) < vocab_size:
        raise ModelError(f"the prompt of group {group.key!r} has ids outside the model's vocabulary; use the model's own tokenizer")
    if not group.seeds:
        raise ModelError(f"group {group.key!r} asks for no sample; give one seed a sample")

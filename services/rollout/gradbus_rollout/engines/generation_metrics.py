"""Metrics of generation, by OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from gradbus.telemetry import observe
from gradbus_rollout.engines.base import GroupCompletion, PromptGroup


@dataclass(slots=True)
class Generated:
    """Result of one call, which the caller fills in."""

    completions: Sequence[GroupCompletion] = ()


class GenerationMetrics:
    """Measures the calls of one engine: once a call, not once a token or a sample."""

    def __init__(self, engine: str) -> None:
        """`engine` is `Engine.name`, e.g. `torch 2.13.0 cpu float32`; its first word is the provider."""
        self._attributes = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": engine.partition(" ")[0]}

    @contextmanager
    def measured(self, groups: Sequence[PromptGroup]) -> Iterator[Generated]:
        """Observes the duration of the block, and the tokens of the completions that the block sets."""
        generated, began, error = Generated(), perf_counter(), {}
        try:
            yield generated
        except BaseException as raised:
            error = {"error.type": type(raised).__name__}
            raise
        finally:
            observe("gen_ai.client.operation.duration", perf_counter() - began, {**self._attributes, **error})
        read = sum(len(group.prompt_ids) for group in groups)
        written = sum(len(sample.token_ids) for group in generated.completions for sample in group.completions)
        observe("gen_ai.client.token.usage", read, {**self._attributes, "gen_ai.token.type": "input"})
        observe("gen_ai.client.token.usage", written, {**self._attributes, "gen_ai.token.type": "output"})

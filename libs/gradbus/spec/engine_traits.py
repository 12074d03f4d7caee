"""Properties of each sampling engine that other services ask about. No torch: specs are checked without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

EngineName = Literal["torch", "sglang"]
"""Values of `rollout.engine`."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Capabilities of one engine. Code outside `gradbus_rollout.engines` asks these and never compares names."""

    embedded: bool
    """Runs on torch in the worker's own process. Otherwise it is a server, with a Python of its own."""
    deterministic: bool
    """A sample depends on weights, prompt and seed alone, not on the samples beside it."""
    batch_invariant: bool
    """Supports `numerics = "batch_invariant"`: log-probabilities with the bits of the trainer's."""
    needs_probe: bool
    """Each version carries the trainer's log-probabilities of a fixed text. The worker compares them with the server's where it
    cannot compare tensors: for adapters, and for a server that does not offer the comparison."""
    pauses: bool
    """`rollout.pause` decides how samples in flight go on over a load."""
    leaves_device: bool
    """Supports `rollout.placement = "timed"`: it frees its device's memory while the trainer computes."""
    returns_routes: bool
    """Supports `rollout.routing_replay`: it says which experts each token went to."""


ENGINES: Final[Mapping[EngineName, EngineTraits]] = MappingProxyType(
    {
        "torch": EngineTraits(
            embedded=True,
            deterministic=True,
            batch_invariant=True,
            needs_probe=False,
            pauses=False,
            leaves_device=True,
            returns_routes=False,
        ),
        "sglang": EngineTraits(
            embedded=False,
            deterministic=False,
            batch_invariant=False,
            needs_probe=True,
            pauses=True,
            leaves_device=True,
            returns_routes=True,
        ),
    }
)


def engines_with(trait: Literal["deterministic", "batch_invariant", "pauses", "leaves_device", "returns_routes"]) -> list[str]:
    """Names of the engines that have `trait`, for messages to users."""
    return [name for name, traits in ENGINES.items() if getattr(traits, trait)]

"""Settings with which the routes of a mixture of experts cannot be replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradbus.errors import Fault
from gradbus.spec.engine_traits import engines_with

_PATH: Final = "rollout.routing_replay"


def replay_faults(sections: Mapping[str, Any], numerics: object) -> Iterator[Fault]:
    """A fault for each setting that `rollout.routing_replay` excludes. `sections` are those that are valid by themselves."""
    rollout, trainer = sections.get("rollout"), sections.get("trainer")
    if rollout is None or not rollout.routing_replay:
        return
    if not rollout.traits.returns_routes:
        engines = " or ".join(f'"{name}"' for name in engines_with("returns_routes"))
        yield Fault(_PATH, f"the {rollout.engine} engine returns no routes", "true", f"false, or rollout.engine = {engines}")
    elif rollout.pause == "retract":
        message = "a sample that is retracted is computed again, and returns new routes beside its old log-probabilities"
        yield Fault("rollout.pause", message, '"retract"', '"abort" or "in_place", or rollout.routing_replay = false')
    if numerics == "batch_invariant":
        yield Fault(_PATH, "experts are not computed with batch-invariant operators", "true", 'false, or numerics = "fast"')
    if trainer and trainer.backend != "torch":
        yield Fault(_PATH, f"the {trainer.backend} backend replays no routes", "true", 'false, or trainer.backend = "torch"')

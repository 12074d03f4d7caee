"""Settings that do not fit a device which trainer and engine share, or with which a mixture's routes cannot be replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gradbus.errors import Fault
from gradbus.spec.engine_traits import engines_with

_MOST_STALENESS: Final = 1
_REPLAY: Final = "rollout.routing_replay"


def placement_faults(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each setting that `rollout.placement` excludes. `sections` are those that are valid by themselves."""
    rollout = sections.get("rollout")
    if rollout is None:
        return
    if rollout.placement == "separate" and rollout.memory_fraction is not None:
        given, allowed = str(rollout.memory_fraction), 'none, or rollout.placement = "shared" or "timed"'
        yield Fault("rollout.memory_fraction", "the engine has a device of its own", given, allowed)
    if (weights := sections.get("weights")) and rollout.placement != "separate" and weights.transport == "broadcast":
        allowed = '"store" or "delta", or rollout.placement = "separate"'
        yield Fault("weights.transport", "NCCL does not connect two processes on one device", '"broadcast"', allowed)
    if rollout.placement == "timed":
        yield from _timed_faults(rollout, sections)


def _timed_faults(rollout: Any, sections: Mapping[str, Any]) -> Iterator[Fault]:
    path, given, others = "rollout.placement", '"timed"', '"separate" or "shared"'
    if not rollout.traits.leaves_device:
        engines = " or ".join(f'"{name}"' for name in engines_with("leaves_device"))
        yield Fault(path, f"the {rollout.engine} engine keeps its memory", given, f"{others}, or rollout.engine = {engines}")
    schedule, trainer, algorithm = (sections.get(name) for name in ("schedule", "trainer", "algorithm"))
    if schedule and schedule.mode == "free":
        yield Fault(path, "a `free` schedule samples while it trains", given, f'{others}, or schedule.mode = "fixed_lag"')
    elif schedule and schedule.max_staleness > _MOST_STALENESS:
        allowed = f"0 or 1, or rollout.placement = {others}"
        yield Fault("schedule.max_staleness", "in turns nobody is more than a step ahead", str(schedule.max_staleness), allowed)
    if algorithm and trainer and algorithm.kl > 0 and (trainer.lora is None or algorithm.kl_reference_steps is not None):
        allowed = f"0, [trainer.lora] without algorithm.kl_reference_steps, or rollout.placement = {others}"
        yield Fault("algorithm.kl", "the reference service would keep its memory on the device", str(algorithm.kl), allowed)
    if algorithm and algorithm.centering is not None:
        allowed = f"none, or rollout.placement = {others}"
        yield Fault("algorithm.centering", "the reference service would keep its memory on the device", str(algorithm.centering), allowed)
    if (reward := sections.get("reward")) and reward.model is not None:
        allowed = f"a grader or a service, or rollout.placement = {others}"
        yield Fault("reward.model", "the reference service would keep its memory on the device", reward.model.source, allowed)
    if (teacher := sections.get("teacher")) is not None and teacher.url is None:
        allowed = f"a teacher with `url`, or rollout.placement = {others}"
        yield Fault("teacher", "the reference service would keep its memory on the device", teacher.source, allowed)
    if trainer and trainer.lora is not None and not rollout.traits.embedded:
        allowed = f'no [trainer.lora], rollout.engine = "torch", or rollout.placement = {others}'
        yield Fault("trainer.lora", "nobody can prove the base model that comes back beneath a server's adapters", allowed=allowed)
    if trainer and trainer.deepspeed.offload != "none":
        allowed = '"none": between its turns all of the trainer is in host memory'
        yield Fault("trainer.deepspeed.offload", "DeepSpeed moves the same state by itself", f'"{trainer.deepspeed.offload}"', allowed)


def replay_faults(sections: Mapping[str, Any], numerics: object) -> Iterator[Fault]:
    """A fault for each setting that `rollout.routing_replay` excludes. `sections` are those that are valid by themselves."""
    rollout = sections.get("rollout")
    if rollout is None or not rollout.routing_replay:
        return
    if not rollout.traits.returns_routes:
        engines = " or ".join(f'"{name}"' for name in engines_with("returns_routes"))
        yield Fault(_REPLAY, f"the {rollout.engine} engine returns no routes", "true", f"false, or rollout.engine = {engines}")
    elif rollout.pause == "retract":
        message = "a sample that is retracted is computed again, and returns new routes beside its old log-probabilities"
        yield Fault("rollout.pause", message, '"retract"', '"abort" or "in_place", or rollout.routing_replay = false')
    if numerics == "batch_invariant":
        yield Fault(_REPLAY, "experts are not computed with batch-invariant operators", "true", 'false, or numerics = "fast"')

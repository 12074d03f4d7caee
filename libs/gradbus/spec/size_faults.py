"""Bounds on products of sizes that are allowed alone.

They bound what one run keeps in the buffer and in the memory of the services that all runs share. Runs of the largest models that are
trained today stay well below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradbus.errors import Fault
from gradbus.spec.sections import RolloutSpec, ScheduleSpec

_GROUP_TOKENS: Final = 1 << 22
_SLOT_TOKENS: Final = 1 << 24
_STEP_SAMPLES: Final = 1 << 20
_STEP_TOKENS: Final = 1 << 30
_GROUPS_IN_FLIGHT: Final = 1 << 17
_GROUPS: Final = 1 << 28


def size_faults(rollout: RolloutSpec | None, schedule: ScheduleSpec | None) -> Iterator[Fault]:
    """A fault for each product that is too large."""
    for path, product, given, most in (*_of_groups(rollout), *_of_schedule(schedule), *_of_steps(rollout, schedule)):
        if given > most:
            yield Fault(path, f"the product {product} is too large", str(given), f"at most {most}")


def _of_groups(rollout: RolloutSpec | None) -> Iterator[tuple[str, str, int, int]]:
    if rollout:
        tokens = rollout.max_new_tokens
        yield "rollout.max_new_tokens", "group_size · max_new_tokens", rollout.group_size * tokens, _GROUP_TOKENS
        if rollout.traits.embedded:
            yield "rollout.slots", "slots · max_new_tokens", rollout.slots * tokens, _SLOT_TOKENS


def _of_schedule(schedule: ScheduleSpec | None) -> Iterator[tuple[str, str, int, int]]:
    if schedule:
        groups, path = schedule.groups_per_step, "schedule.groups_per_step"
        yield path, "groups_per_step · (max_staleness + 2)", groups * (schedule.max_staleness + 2), _GROUPS_IN_FLIGHT
        replaced = schedule.dynamic_sampling
        yield path, "groups_per_step · dynamic_sampling", groups * replaced, _GROUPS_IN_FLIGHT
        yield "schedule.steps", "groups_per_step · dynamic_sampling · steps", groups * replaced * schedule.steps, _GROUPS


def _of_steps(rollout: RolloutSpec | None, schedule: ScheduleSpec | None) -> Iterator[tuple[str, str, int, int]]:
    if rollout and schedule:
        samples, path = schedule.groups_per_step * rollout.group_size, "schedule.groups_per_step"
        yield path, "groups_per_step · group_size", samples, _STEP_SAMPLES
        yield path, "groups_per_step · group_size · max_new_tokens", samples * rollout.max_new_tokens, _STEP_TOKENS

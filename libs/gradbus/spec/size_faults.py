"""Bounds on products of sizes that are allowed alone.

They bound what one run keeps in the buffer and in the memory of the services that all runs share. Runs of the largest models that are
trained today stay well below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradbus.errors import Fault
from gradbus.spec.sections import EnvironmentSpec, RolloutSpec, ScheduleSpec, most_drawn

_GROUP_TOKENS: Final = 1 << 22
_SLOT_TOKENS: Final = 1 << 24
_STEP_SAMPLES: Final = 1 << 20
_STEP_TOKENS: Final = 1 << 30
_GROUPS_IN_FLIGHT: Final = 1 << 17
_GROUPS: Final = 1 << 28
_Product = tuple[str, str, int, int]
"""Field, the product as text, its value, the most that it may be."""


def size_faults(rollout: RolloutSpec | None, schedule: ScheduleSpec | None, environment: EnvironmentSpec | None = None) -> Iterator[Fault]:
    """A fault for each product that is too large. A sample in an environment has the tokens of all its turns."""
    drawn = 0 if rollout is None else most_drawn(rollout, environment)
    of_sample = "max_new_tokens" if environment is None else "max_new_tokens · max_turns, or environment.max_tokens,"
    products = (*_of_groups(rollout, drawn, of_sample), *_of_schedule(schedule), *_of_steps(rollout, schedule, drawn, of_sample))
    for path, product, given, most in products:
        if given > most:
            yield Fault(path, f"the product {product} is too large", str(given), f"at most {most}")


def _of_groups(rollout: RolloutSpec | None, drawn: int, of_sample: str) -> Iterator[_Product]:
    if rollout:
        yield "rollout.max_new_tokens", f"group_size · {of_sample}", rollout.group_size * drawn, _GROUP_TOKENS
        if rollout.traits.embedded:
            yield "rollout.slots", "slots · max_new_tokens", rollout.slots * rollout.max_new_tokens, _SLOT_TOKENS


def _of_schedule(schedule: ScheduleSpec | None) -> Iterator[_Product]:
    if schedule:
        groups, path = schedule.groups_per_step, "schedule.groups_per_step"
        yield path, "groups_per_step · (max_staleness + 2)", groups * (schedule.max_staleness + 2), _GROUPS_IN_FLIGHT
        replaced = schedule.dynamic_sampling
        yield path, "groups_per_step · dynamic_sampling", groups * replaced, _GROUPS_IN_FLIGHT
        yield "schedule.steps", "groups_per_step · dynamic_sampling · steps", groups * replaced * schedule.steps, _GROUPS


def _of_steps(rollout: RolloutSpec | None, schedule: ScheduleSpec | None, drawn: int, of_sample: str) -> Iterator[_Product]:
    if rollout and schedule:
        samples, path = schedule.groups_per_step * rollout.group_size, "schedule.groups_per_step"
        yield path, "groups_per_step · group_size", samples, _STEP_SAMPLES
        yield path, f"groups_per_step · group_size · {of_sample}", samples * drawn, _STEP_TOKENS

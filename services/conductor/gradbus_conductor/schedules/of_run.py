"""The schedule that a spec names."""

from __future__ import annotations

from gradbus.experience.dynamic_sampling import DynamicSampling
from gradbus.spec import RunSpec
from gradbus_conductor.schedules.base import Schedule
from gradbus_conductor.schedules.dynamic_lag import DynamicLag
from gradbus_conductor.schedules.fixed_lag import FixedLag
from gradbus_conductor.schedules.free import Free


def schedule_for(spec: RunSpec) -> Schedule:
    """A new schedule of its kind."""
    if spec.schedule.mode == "free":
        return Free(spec)
    rules = DynamicSampling.of(spec.schedule)
    return FixedLag(spec) if rules is None else DynamicLag(spec, rules)

"""Sections and fields that a run of a kind does not read, or lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gradbus.errors import Fault
from gradbus.spec.algorithm import AlgorithmSpec
from gradbus.spec.data import DataSpec
from gradbus.spec.kinds import DATA_FIELDS, GIVEN_RESPONSES, PREFERENCE_KINDS, PreferenceSpec
from gradbus.spec.reward.section import RewardSpec
from gradbus.spec.sections import EvaluationSpec, InnerSpec, RolloutSpec, ScheduleSpec, Section, TrainerSpec, WeightsSpec

_NOT_READ: Final[Mapping[str, tuple[Section, str]]] = {
    "rollout": (RolloutSpec(), "samples nothing: the responses are in the dataset"),
    "reward": (RewardSpec(), "judges nothing: the dataset says which responses are good"),
    "algorithm": (AlgorithmSpec(**GIVEN_RESPONSES), "has no advantages and no ratios"),
    "weights": (WeightsSpec(), "sends its weights to nobody"),
}
"""Sections that a run on given responses does not read, and why."""
_OF_LOSS: Final = {
    "beta": ("dpo", "ipo", "simpo", "orpo", "kto"),
    "margin": ("simpo",),
    "label_smoothing": ("dpo",),
    "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
    "center": ("reward_model",),
}
"""Fields of `preference` that only some kinds read."""


def kind_faults(kind: str, sections: Mapping[str, Any], numerics: object) -> Iterator[Fault]:
    """Fields that a run of this kind would not read. `sections` are those that are valid by themselves."""
    yield from _column_faults(kind, sections.get("data"))
    yield from _preference_faults(kind, sections.get("preference"))
    if kind == "rl":
        return
    for name, (unset, reason) in _NOT_READ.items():
        given = sections.get(name)
        if given is not None and given.model_copy(update={"dtype": None} if name == "weights" else {}) != unset:
            yield Fault(name, f"a run of kind {kind} {reason}", allowed=f'no [{name}], or kind = "rl"')
    if numerics == "batch_invariant":
        yield Fault("numerics", f"a run of kind {kind} has no rollout whose bits could differ", '"batch_invariant"', '"fast"')
    schedule, default = sections.get("schedule"), ScheduleSpec(steps=1)
    for name in ("mode", "max_staleness", "dynamic_sampling"):
        if schedule and (given := getattr(schedule, name)) != getattr(default, name):
            message = f"a run of kind {kind} samples nothing that could be stale or filtered"
            yield Fault(f"schedule.{name}", message, json.dumps(given), 'leave it out, or kind = "rl"')
    if (evaluation := sections.get("evaluation")) and evaluation.metric != EvaluationSpec().metric:
        yield Fault("evaluation.metric", f"a run of kind {kind} is evaluated by its loss", json.dumps(evaluation.metric), "no `metric`")
    if trainer := sections.get("trainer"):
        yield from _trainer_faults(kind, trainer)


def _trainer_faults(kind: str, trainer: TrainerSpec) -> Iterator[Fault]:
    if trainer.critic is not None:
        yield Fault("trainer.critic", f"a run of kind {kind} has no rewards for a critic", allowed='no [trainer.critic], or kind = "rl"')
    if trainer.inner != InnerSpec():
        message, given = f"a step of kind {kind} trains each of its rows once", json.dumps(trainer.inner.model_dump(exclude_defaults=True))
        yield Fault("trainer.inner", message, given, "no [trainer.inner]; take smaller steps, or more of them")
    if kind == "reward_model":
        yield from _reward_model_faults(trainer)


def _reward_model_faults(trainer: TrainerSpec) -> Iterator[Fault]:
    if trainer.lora is not None:
        yield Fault("trainer.lora", "a reward model trains every weight and its head", allowed="no [trainer.lora], or another kind")
    if trainer.dtype != "fp32":
        yield Fault(
            "trainer.dtype", "a reward model is trained in float32", json.dumps(trainer.dtype), '"fp32"; weights.dtype may be "bf16"'
        )


def _column_faults(kind: str, data: Any) -> Iterator[Fault]:
    if data is None:
        return
    read = DATA_FIELDS.get(kind, ())
    for field in ("completion", "messages", "chosen", "rejected", "label"):
        if field not in read and getattr(data, field) != DataSpec.model_fields[field].default:
            kinds = ", ".join(name for name, fields in DATA_FIELDS.items() if field in fields)
            yield Fault(
                f"data.{field}", f"a run of kind {kind} does not read it", json.dumps(getattr(data, field)), f"none, or kind = {kinds}"
            )
    replaced = ("messages",) if data.messages is None else ("prompt", "completion")
    if read:
        yield from _equal_columns(data, [field for field in ("prompt", *read) if field not in replaced])
    if "messages" in read and data.messages is not None:
        for field in replaced:
            if getattr(data, field) != DataSpec.model_fields[field].default:
                message = "`messages` stands in place of prompt and completion"
                yield Fault(f"data.{field}", message, json.dumps(getattr(data, field)), "none, or no `messages`")


def _equal_columns(data: DataSpec, fields: Sequence[str]) -> Iterator[Fault]:
    for at, field in enumerate(fields):
        if (name := getattr(data, field)) in [getattr(data, other) for other in fields[:at]]:
            yield Fault(f"data.{field}", "is the column of another field", json.dumps(name), "a column for each of " + ", ".join(fields))


def _preference_faults(kind: str, preference: Any) -> Iterator[Fault]:
    if preference is None:
        return
    if kind not in PREFERENCE_KINDS:
        message = f"a run of kind {kind} has neither pairs nor labels"
        yield Fault("preference", message, allowed=f"no [preference], or kind = {', '.join(PREFERENCE_KINDS)}")
        return
    if kind == "kto" and not preference.desirable_weight + preference.undesirable_weight:
        message = "with both weights 0 nothing is trained"
        yield Fault("preference.desirable_weight", message, "0 and 0", "a number above 0 for one of them")
    for field, kinds in _OF_LOSS.items():
        given = getattr(preference, field)
        if kind not in kinds and given != PreferenceSpec.model_fields[field].default:
            yield Fault(
                f"preference.{field}", f"the loss of {kind} does not read it", json.dumps(given), f"none, or kind = {', '.join(kinds)}"
            )

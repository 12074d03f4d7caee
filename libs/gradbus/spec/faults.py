"""Parses a run spec from any input, or lists all of its faults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from gradbus.errors import Fault, SpecError
from gradbus.nearest import nearest_name
from gradbus.spec.algorithm_faults import algorithm_faults, centering_faults
from gradbus.spec.data import data_faults
from gradbus.spec.engine_traits import engines_with
from gradbus.spec.environment_faults import environment_faults
from gradbus.spec.kind_faults import kind_faults
from gradbus.spec.kinds import DATA_FIELDS, Kind
from gradbus.spec.model_faults import model_faults
from gradbus.spec.presets import PRESETS
from gradbus.spec.reward.faults import reward_faults
from gradbus.spec.rollout_faults import placement_faults, replay_faults
from gradbus.spec.run import RunSpec, resolved_sections
from gradbus.spec.sections import DeepSpeedSpec, Section, WeightsSpec
from gradbus.spec.size_faults import size_faults
from gradbus.spec.teacher_faults import reads_reward, teacher_faults
from gradbus.strict_json import dotted, has_more_values, value_faults

MAX_FAULTS: Final = 100
"""Faults of one kind in a response; their number is the user's to choose, and each takes time."""
_GIVEN_LIMIT = 80
_MESSAGE_LIMIT = 500
_MAX_VALUES: Final = 10_000
"""Values in a spec. The largest has some thousands: files of a model, stop tokens."""
_TAGS = {2, 5}
"""Positions in pydantic's location that name a grader's type and are no part of the path: `reward.grader.<type>.graders.<name>.<type>`."""
_UNQUOTED = {"int_type": "a whole number", "float_type": "a number", "bool_type": "true or false", "bool_parsing": "true or false"}
"""Types of pydantic's errors to what a field of that type takes."""
_LISTS = {"tuple_type", "list_type", "too_long", "too_short"}
_SECTIONS = {"model_type", "model_attributes_type"}
_ELSEWHERE: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    **{("kind", name): ("is an algorithm, of runs that sample", f'no `kind`, with algorithm.name = "{name}"') for name in PRESETS},
    **{("algorithm.name", kind): ("is a kind of run, on given responses", f'no [algorithm], with kind = "{kind}"') for kind in DATA_FIELDS},
}
"""By a field and a value that another field takes: what the value is, and how to say it."""


def parse_spec(body: object) -> RunSpec:
    """The spec that `body` describes.

    Raises SpecError with every fault: those of single fields, and those of rules across fields, as far as the sections that a rule
    needs are valid.
    """
    refuse_unstorable(body)
    if not isinstance(body, Mapping):
        raise SpecError([Fault("(body)", "a run spec is an object", _shown(body), "an object with name, model, data, reward, schedule")])
    faults: list[Fault] = []
    try:
        spec = RunSpec.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults.extend(map(_fault, found[:MAX_FAULTS]))
        if len(found) > MAX_FAULTS:
            faults.append(Fault("(body)", f"has {len(found) - MAX_FAULTS} more faults"))
        spec = None
    sections = _valid_sections(resolved_sections(body)) if spec is None else dict(spec)
    faults.extend(model_faults(sections.get("model")))
    faults.extend(model_faults(reward.model if (reward := sections.get("reward")) else None, "reward.model"))
    faults.extend(model_faults(sections.get("teacher"), "teacher"))
    faults.extend(size_faults(sections.get("rollout"), sections.get("schedule"), sections.get("environment")))
    faults.extend(data_faults(sections.get("data"), body.get("kind", "rl")))
    if (kind := body.get("kind", "rl")) in get_args(Kind):
        faults.extend(kind_faults(kind, sections, body.get("numerics")))
        faults.extend(teacher_faults(kind, sections, body.get("deterministic")))
        faults.extend(environment_faults(kind, sections, body.get("deterministic")))
    if kind == "rl" and "reward" in sections and reads_reward(sections):
        faults.extend(reward_faults(sections["reward"]))
    # A run on given responses has an algorithm that nobody chose.
    is_given = isinstance(kind, str) and kind in DATA_FIELDS
    read = {name: section for name, section in sections.items() if not (is_given and name == "algorithm")}
    faults.extend(_joint_faults(read, body.get("deterministic"), body.get("numerics")))
    if body.get("numerics") == "batch_invariant" and kind == "rl":
        faults.extend(_numerics_faults(sections))
    if faults or spec is None:
        raise SpecError(faults)
    return spec


def refuse_unstorable(body: object) -> None:
    """Raises SpecError for more values than a spec has, and for numbers, text and nesting that no service could store or send as JSON."""
    if has_more_values(body, _MAX_VALUES):
        raise SpecError([Fault("(body)", f"has more than {_MAX_VALUES} values", allowed="the fields of a run spec")])
    found = islice(value_faults(body), MAX_FAULTS)
    faults = [Fault(dotted(path) if path else "(body)", f"has {fault}", allowed="finite numbers, UTF-8 text") for path, fault in found]
    if faults:
        raise SpecError(faults)


def _valid_sections(body: Mapping[Any, Any]) -> dict[str, Any]:
    """The sections that are valid by themselves, with their defaults."""
    valid: dict[str, Any] = {}
    for name, field in RunSpec.model_fields.items():
        kind = next((one for one in _models(field.annotation) if issubclass(one, Section)), None)
        if kind is None:
            continue
        if (name not in body and not field.is_required()) or (body.get(name) is None and field.default is None):
            valid[name] = field.default
            continue
        try:
            valid[name] = kind.model_validate(body.get(name))
        except ValidationError:
            continue
    return valid


def _joint_faults(sections: Mapping[str, Any], deterministic: object, numerics: object) -> Iterator[Fault]:
    if rollout := sections.get("rollout"):
        if rollout.top_p != 1.0:
            yield Fault(
                "rollout.top_p",
                "the trainer's log-probabilities cover the whole vocabulary, a truncated sampler's do not",
                _shown(rollout.top_p),
                "1.0",
            )
        if rollout.top_k != 0:
            yield Fault(
                "rollout.top_k",
                "the trainer's log-probabilities cover the whole vocabulary, a truncated sampler's do not",
                _shown(rollout.top_k),
                "0",
            )
        if not rollout.traits.deterministic and deterministic is True:
            yield Fault(
                "deterministic",
                f"a sample of the {rollout.engine} engine depends on the samples beside it",
                "true",
                f"false, or rollout.engine = {' or '.join(engines_with('deterministic'))}",
            )
    if (schedule := sections.get("schedule")) and deterministic is True and schedule.mode != "fixed_lag":
        yield Fault("deterministic", "samples of a `free` schedule depend on timing", "true", "false, or schedule.mode = fixed_lag")
    if schedule and schedule.mode == "free" and schedule.dynamic_sampling > 1:
        message = "in a `free` schedule a filtered group takes no place in a step anyway"
        yield Fault("schedule.dynamic_sampling", message, str(schedule.dynamic_sampling), '1, or schedule.mode = "fixed_lag"')
    if trainer := sections.get("trainer"):
        yield from _trainer_faults(trainer)
    if weights := sections.get("weights"):
        yield from _weights_faults(weights, trainer)
    yield from placement_faults(sections)
    yield from replay_faults(sections, numerics)
    if algorithm := sections.get("algorithm"):
        yield from algorithm_faults(algorithm, trainer, schedule)
        yield from centering_faults(algorithm, sections, numerics)


def _weights_faults(weights: Any, trainer: Any) -> Iterator[Fault]:
    if weights.transport != "delta" and weights.anchor_every != WeightsSpec().anchor_every:
        yield Fault(
            "weights.anchor_every", "only deltas need anchors", _shown(weights.anchor_every), 'none, or weights.transport = "delta"'
        )
    if trainer and (trainer.dtype, weights.dtype) == ("bf16", "fp32"):
        yield Fault(
            "weights.dtype", "the trainer computes with rounded weights, and workers would sample with others", '"fp32"', "bf16, or none"
        )


def _numerics_faults(sections: Mapping[str, Any]) -> Iterator[Fault]:
    """Settings with which the log-probabilities of rollout and trainer would differ in their bits."""
    path, given = "numerics", '"batch_invariant"'
    rollout, trainer, weights = (sections.get(name) for name in ("rollout", "trainer", "weights"))
    if rollout and not rollout.traits.batch_invariant:
        engines = " or ".join(f'"{name}"' for name in engines_with("batch_invariant"))
        yield Fault(path, f"the {rollout.engine} engine computes with other operators", given, f'"fast", or rollout.engine = {engines}')
    if trainer and trainer.backend != "torch":
        yield Fault(path, f"the {trainer.backend} backend computes with other operators", given, '"fast", or trainer.backend = "torch"')
    if trainer and trainer.lora is not None:
        yield Fault(path, "the engine merges adapters into the weights and the trainer does not", given, '"fast", or no [trainer.lora]')
    if trainer and trainer.dtype != "fp32":
        yield Fault(path, "sums in bf16 depend on their neighbours", given, '"fast", or trainer.dtype = "fp32"')
    if (teacher := sections.get("teacher")) and teacher.top_k is not None:
        yield Fault(path, "the loss over a teacher's rows is computed by other operators", given, '"fast", or no teacher.top_k')
    if weights and weights.dtype == "bf16":
        yield Fault(path, "workers would sample with rounded weights", given, '"fast", or weights.dtype = "fp32"')
    if rollout and trainer and rollout.threads != trainer.threads:
        threads = f"rollout.threads = {rollout.threads}, trainer.threads = {trainer.threads}"
        yield Fault(path, "the order of a sum depends on the number of threads", threads, '"fast", or the same number of threads for both')


def _trainer_faults(trainer: Any) -> Iterator[Fault]:
    if not all(0.0 <= beta < 1.0 for beta in trainer.betas):
        yield Fault("trainer.betas", "AdamW's decay rates lie in [0, 1)", _shown(trainer.betas), "two numbers in [0, 1)")
    if trainer.lora is not None and len(set(trainer.lora.target_modules)) < len(trainer.lora.target_modules):
        yield Fault("trainer.lora.target_modules", "a layer has only one adapter", _shown(trainer.lora.target_modules), "each name once")
    chosen, path = trainer.deepspeed, "trainer.deepspeed"
    if trainer.backend != "deepspeed" and chosen != DeepSpeedSpec():
        yield Fault(path, "the torch backend does not use these settings", allowed='none, or trainer.backend = "deepspeed"')
    if trainer.backend == "deepspeed" and trainer.dtype == "bf16" and chosen.zero_stage == 0:
        yield Fault("trainer.dtype", "stage 0 keeps no float32 weights beside bf16 ones", '"bf16"', "fp32, or zero_stage = 1, 2 or 3")
    stages = {"none": 0, "optimizer": 1, "all": 3}
    if chosen.zero_stage < stages[chosen.offload]:
        yield Fault(
            f"{path}.offload",
            "only sharded state can be offloaded",
            _shown(chosen.offload),
            f"with zero_stage ≥ {stages[chosen.offload]}",
        )
    if chosen.optimizer == "cpu_adam" and chosen.offload == "none":
        yield Fault(f"{path}.optimizer", "cpu_adam works only on state in host memory", '"cpu_adam"', "adamw, or an offload")


def _fault(item: Any) -> Fault:
    location = item["loc"]
    path = tuple(part for at, part in enumerate(location) if not (location[:2] == ("reward", "grader") and at in _TAGS))
    where = dotted(path) if path else "(body)"
    known = _fields_at(path[:-1])
    if item["type"] == "extra_forbidden":
        return Fault(where, "unknown field", _shown(item["input"]), ", ".join(known), nearest_name(str(path[-1]), known))
    if item["type"] == "missing":
        return Fault(where, "required field is missing")
    given = _shown(item["input"])
    if worded := _worded(item, path, where):
        return Fault(where, worded[0], given, worded[1])
    context = item.get("ctx", {})
    allowed = str(context.get("expected", context.get("expected_tags", "")))
    words = [word.strip(" '") for word in allowed.replace(" or ", ",").split(",")]
    return Fault(where, item["msg"][:_MESSAGE_LIMIT], given, allowed, nearest_name(given.strip('"'), words))


def _worded(item: Any, path: tuple[object, ...], where: str) -> tuple[str, str] | None:
    """Message and what is allowed, where pydantic's own words name what only Python has, or nothing to do."""
    kind, value = item["type"], item["input"]
    if kind == "string_pattern_mismatch":
        return "does not have the required form", _description(path) or item["ctx"]["pattern"]
    if kind in _SECTIONS:
        return "has fields of its own", f"a table with some of {', '.join(_fields_at(path))}"
    if kind in _LISTS:
        message = item["msg"].replace("Tuple", "The list").replace("valid tuple", "list").replace(" after validation", "")
        return message, _description(path) or "a list in brackets"
    if kind in _UNQUOTED:
        return item["msg"], _UNQUOTED[kind] + (", without quotation marks" if isinstance(value, str) else "")
    return _ELSEWHERE.get((where, value)) if isinstance(value, str) else None


def _fields_at(path: tuple[object, ...]) -> list[str]:
    """Names of the fields of the object at `path`."""
    return sorted({name for kind in _kinds_at(path) for name in kind.model_fields})


def _description(path: tuple[object, ...]) -> str:
    """The description of the field at `path`."""
    name = str(path[-1])
    found = (kind.model_fields[name].description or "" for kind in _kinds_at(path[:-1]) if name in kind.model_fields)
    return next(found, "").rstrip(".")


def _kinds_at(path: tuple[object, ...]) -> list[type[BaseModel]]:
    kinds: list[type[BaseModel]] = [RunSpec]
    for part in path:
        inner = [model for kind in kinds if str(part) in kind.model_fields for model in _models(kind.model_fields[str(part)].annotation)]
        kinds = inner or kinds  # not a field: the name of one of several graders
    return kinds


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _shown(value: object) -> str:
    """`value` as JSON, cut off before more than the limit of it is written."""
    text = ""
    for piece in json.JSONEncoder(default=str).iterencode(value):
        text += piece[: _GIVEN_LIMIT + 1]
        if len(text) > _GIVEN_LIMIT:
            return text[: _GIVEN_LIMIT - 1] + "…"
    return text

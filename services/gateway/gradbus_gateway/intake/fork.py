"""Forks: a submission that names a version of a run, and of that run's spec only what is to be different."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from gradbus.errors import Fault, SpecError
from gradbus.spec import RunSpec, Version
from gradbus.spec.sections import MOST_NAME_CHARACTERS, RunName
from gradbus_gateway.intake.model.run_models import RunModels

FORK: Final = "fork_of"
_SUFFIX: Final = "-fork"
_FIXED: Final = {
    "model": "a fork begins with the version that `fork_of` names",
    "kind": "a fork is of its run's kind, by which its data and its algorithm are read",
}
"""Fields that a fork may not change, with the reason."""
_ONE_OF: Final = {
    "reward": ("grader", "service", "model"),
    "data": ("train", "mixture"),
    "environment": ("source", "service", "agent"),
}
"""Fields of a section of which there is one: a new one takes the place of the run's."""
_SOURCES: Final = frozenset({"path", "run", "url"})
_REVISIONS: Final = frozenset({"revision", "version"})
_STORED: Final = frozenset({"files", "lineage"})

Json = dict[str, Any]


class ForkOf(BaseModel):
    """The field `fork_of` of a submission."""

    model_config = ConfigDict(extra="forbid", title="ForkOf")

    run: RunName
    """Id of a run, or name of the newest such run."""
    version: Version = "last"
    """Step of one of its checkpoints."""


class Forks:
    """Makes the specs of forks."""

    def __init__(self, run_models: RunModels) -> None:
        self._run_models = run_models

    async def spec(self, body: object, caller: str) -> object:
        """The whole spec of a fork; a body that is none, unchanged. `caller` is the API key, which must be allowed to read the run.

        Raises SpecError for a run or a version that there is not, and for settings that a fork may not change.
        """
        if not isinstance(body, Mapping) or FORK not in body:
            return body
        faults = list(_fixed_faults(body))
        try:
            asked = ForkOf.model_validate(body[FORK])
        except ValidationError as error:
            raise SpecError([*map(_fault, error.errors(include_url=False)), *faults]) from None
        found = await self._run_models.resolve(asked.run, asked.version, caller, FORK)
        parent, version = await self._run_models.spec(found), found.lineage.ancestors[0].version
        changes = {str(name): value for name, value in body.items() if name != FORK}
        if version >= parent.schedule.steps and not _gives_steps(changes):
            message = f"version {version} is the run's last, so that no step is left to train"
            faults.append(Fault("schedule.steps", message, allowed="a number of steps"))
        if faults:
            raise SpecError(faults)
        return forked(parent, found.lineage.ancestors[0].run, version, changes)


def forked(parent: RunSpec, run_id: str, version: int, changes: Mapping[str, Any]) -> Json:
    """The spec of `parent` with `changes`, with this version as its model, and with the steps that `parent` had left after it."""
    judged = parent.reward.in_turn[parent.reward.turn_of_version(version, parent.schedule.groups_per_step)]
    spec: Json = parent.model_copy(update={"reward": judged}).model_dump(mode="json")
    spec["name"] = parent.name[: MOST_NAME_CHARACTERS - len(_SUFFIX)] + _SUFFIX
    spec["schedule"]["steps"] = parent.schedule.steps - version
    spec["model"] = {"run": run_id, "version": version}
    for section, names in _ONE_OF.items():
        given = changes.get(section)
        if isinstance(given, Mapping) and isinstance(spec[section], dict) and any(given.get(name) is not None for name in names):
            spec[section] = {name: value for name, value in spec[section].items() if name not in names or name in given}
    if spec["teacher"]:
        spec["teacher"] = _source_to_change(spec["teacher"], changes.get("teacher"))
    if isinstance(reward := changes.get("reward"), Mapping) and spec["reward"] and spec["reward"].get("model"):
        spec["reward"]["model"] = _source_to_change(spec["reward"]["model"], reward.get("model"))
    algorithm = changes.get("algorithm")
    if isinstance(algorithm, Mapping) and algorithm.get("name", parent.algorithm.name) != parent.algorithm.name:
        del spec["algorithm"]  # it has the value of every field, which another preset would not replace
        spec["trainer"].pop("critic")
    return _merged(spec, changes)


def _source_to_change(model: Json, change: object) -> Json:
    """A teacher or reward model without what belongs to a source that `change` replaces, and what its server said of itself."""
    given = frozenset(change) if isinstance(change, Mapping) else frozenset[Any]()
    dropped = {"served"}
    if given & _SOURCES:
        dropped |= _SOURCES | _REVISIONS | _STORED
    elif given & _REVISIONS:
        dropped |= _STORED
    return {name: value for name, value in model.items() if name not in dropped}


def _merged(spec: Json, changes: Mapping[Any, Any]) -> Json:
    """Field by field; null stands for a field's default, and a table with a `type`, which is a grader, replaces the one before it."""
    found = dict(spec)
    for name, value in changes.items():
        before = found.get(name)
        if value is None:
            found.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(before, dict) and "type" not in value:
            found[name] = _merged(before, value)
        else:
            found[name] = value
    return found


def _fixed_faults(body: Mapping[Any, Any]) -> Iterator[Fault]:
    for field, reason in _FIXED.items():
        if field in body:
            yield Fault(field, f"cannot be changed: {reason}", allowed="none; or a whole spec with `model.run` in place of a fork")


def _gives_steps(changes: Mapping[str, Any]) -> bool:
    schedule = changes.get("schedule")
    return isinstance(schedule, Mapping) and "steps" in schedule


def _fault(error: Any) -> Fault:
    """One of pydantic's errors."""
    path = ".".join([FORK, *(str(part) for part in error["loc"][:1])])
    return Fault(
        path, error["msg"], allowed='a table with `run` and, if it is not to be the last, `version`: {"run": "my-run", "version": 40}'
    )

"""From the body of a submission to a run spec with every digest filled in, or to all of its faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from gradbus.algorithms import need_faults
from gradbus.errors import Fault, SpecError
from gradbus.objects import ObjectStore
from gradbus.spec import (
    MAX_CHANGES,
    MAX_GROUP,
    AlgorithmSpec,
    DataSpec,
    EnvironmentSpec,
    EvaluationSpec,
    ModelSpec,
    RewardChange,
    RewardSpec,
    RolloutSpec,
    RunSpec,
    TeacherSpec,
    Version,
    parse_spec,
)
from gradbus.spec.kinds import Kind, columns_of
from gradbus.spec.model_faults import model_faults
from gradbus.tokenizer.launcher import ForkServer
from gradbus_gateway.intake.check_turns import CheckTurns
from gradbus_gateway.intake.data import DataIntake, StoredData
from gradbus_gateway.intake.fork import Forks
from gradbus_gateway.intake.model.intake import ModelIntake, StoredModel
from gradbus_gateway.intake.model.run_models import RunModels, VersionFolder, of_version
from gradbus_gateway.intake.prompt_check import PromptCheck
from gradbus_gateway.intake.spec.faults import (
    backend_faults,
    critic_faults,
    decoder_faults,
    environment_faults,
    evaluation_faults,
    fit_faults,
    lora_faults,
    queue_faults,
    replay_faults,
    reward_faults,
    server_faults,
)
from gradbus_gateway.intake.spec.frozen_models import REWARD_MODEL, TEACHER, FrozenModels, sampler_row_faults
from gradbus_gateway.intake.spec.teacher_servers import SubmittedTeachers
from gradbus_gateway.settings import GatewaySettings, Queues, TeacherSettings

Section = TypeVar("Section", bound=BaseModel)
_GRADERS_AT_A_TIME: Final = 2
_Store = Callable[[ModelSpec, str], Awaitable[tuple[StoredModel | None, list[Fault]]]]
"""Stores a model for an API key."""


class SpecIntake:
    """Checks a spec and stores the model and the data that it names."""

    def __init__(self, objects: ObjectStore, tokenizers: ForkServer, settings: GatewaySettings, run_models: RunModels) -> None:
        self._settings = settings
        self._run_models = run_models
        self._forks = Forks(run_models)
        self._teachers = SubmittedTeachers(TeacherSettings(), allow_loopback=settings.allow_loopback)
        self._prompts = PromptCheck(objects, tokenizers, self._teachers.tokenizer_fault)
        self._models = ModelIntake(objects, settings)
        self._datasets = DataIntake(objects, settings)
        self._queues = Queues().queues
        self._graders = CheckTurns(_GRADERS_AT_A_TIME)

    async def accept(self, body: object, caller: str) -> RunSpec:
        """The spec with every digest filled in. Raises SpecError with the faults of the spec, its model, its data and its reward.

        If it has none, its first prompts are encoded. `caller` is the API key, because one key has one check of a kind at a time.
        """
        body = with_operator_scorer(await self._forks.spec(body, caller), self._settings.reward_service)
        faults: list[Fault] = []
        spec: RunSpec | None = None
        try:
            # In a thread, because a body with thousands of faults takes a second.
            spec = await asyncio.to_thread(parse_spec, body)
        except SpecError as error:
            faults.extend(error.faults)
        # If the spec has faults, its valid sections are checked further, so that one response lists all faults.
        sections: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
        kind: Kind = sections["kind"] if sections.get("kind") in get_args(Kind) else "rl"
        model, data = None, None
        if model_spec := spec.model if spec else _valid(ModelSpec, sections.get("model")):
            store = self._models.store_with_head if kind == "reward_model" else self._models.store
            model, found = await self._stored(model_spec, caller, store, kind=kind)
            faults.extend(found)
        if data_spec := spec.data if spec else _valid(DataSpec, sections.get("data")):
            data, found = await self._datasets.store(data_spec, columns_of(kind, data_spec), caller)
            faults.extend(found)
        reward = spec.reward if spec else _valid(RewardSpec, sections.get("reward"))
        environment = spec.environment if spec else _valid(EnvironmentSpec, sections.get("environment"))
        # In a thread as well: a source is parsed in another process.
        async with self._graders.turn(caller):
            faults.extend(await asyncio.to_thread(lambda: self._code_faults(reward, data, environment)))
        frozen = await self._stored_frozen(reward, spec.teacher if spec else _valid(TeacherSpec, sections.get("teacher")), caller, model)
        rollout = (spec.rollout if spec else _valid(RolloutSpec, sections.get("rollout", {}))) if kind == "rl" else None
        faults.extend(
            [*frozen.faults, *frozen.unfit(model, rollout, in_environment=environment is not None), *fit_faults(model, data, rollout)]
        )
        if model and spec:
            faults.extend(model.info.family.faults(rollout, spec.numerics, spec.trainer.lora))
            faults.extend([*decoder_faults(model, rollout, spec.numerics), *backend_faults(model, spec.trainer)])
            faults.extend([*server_faults(model, spec.rollout), *replay_faults(model, spec.rollout)])
            faults.extend(await self._run_models.adapter_faults(spec, model.spec) if model.spec.adapters else ())
            faults.extend([*lora_faults(model, spec.trainer.lora), *critic_faults(model, spec), *sampler_row_faults(spec, model)])
        if spec:
            faults.extend([*need_faults(spec), *queue_faults(spec.queue, self._queues)])
        if evaluation := spec.evaluation if spec else _valid(EvaluationSpec, sections.get("evaluation", {})):
            faults.extend(evaluation_faults(evaluation, data_spec, reward))
        if faults or spec is None or model is None or data is None:
            raise SpecError(faults)
        spec = spec.model_copy(update={"model": model.spec, "data": data.spec, **frozen.sections(spec, model)})
        if fault := await self._prompts.fault(spec, caller):
            raise SpecError([fault])
        return spec

    async def accept_scorer(self, spec: RunSpec, body: object, caller: str) -> RewardChange:
        """A scorer for a run with this spec. Raises SpecError with the faults that it would have as a change in the spec."""
        if fault := self._fixed_scorer(spec):
            raise SpecError([fault])
        if not isinstance(body, Mapping):
            raise SpecError([Fault("(body)", "a scorer is an object", allowed="an object with `grader` or `service`")])
        sections = spec.model_dump(mode="json")
        sections["reward"]["changes"] = [{"from_group": 0, **body}]
        try:
            changed = await asyncio.to_thread(parse_spec, sections)
            data, faults = await self._datasets.store(changed.data, columns_of(changed.kind, changed.data), caller)
            async with self._graders.turn(caller):
                faults = [*faults, *await asyncio.to_thread(lambda: self._code_faults(changed.reward, data, None))]
            if faults := [*faults, *need_faults(changed), *evaluation_faults(changed.evaluation, changed.data, changed.reward)]:
                raise SpecError(faults)
        except SpecError as error:
            raise SpecError([replace(fault, path=_field_of_scorer(fault.path)) for fault in error.faults]) from None
        change = changed.reward.changes[0]
        if change.from_version is not None:
            raise SpecError([Fault("from_version", "the run decides it", str(change.from_version), "none")])
        if change.from_group > MAX_GROUP - MAX_CHANGES:
            raise SpecError(
                [Fault("from_group", "no run has so many groups", str(change.from_group), f"at most {MAX_GROUP - MAX_CHANGES}")]
            )
        return change

    def _fixed_scorer(self, spec: RunSpec) -> Fault | None:
        """Why the scorer of this run stays what it is; None if it may change."""
        if self._settings.reward_service:
            return Fault("(body)", "the operator's scorer judges the runs of this server", allowed="no change")
        if not spec.has_scorer or spec.reward.model is not None:
            return Fault("(body)", "no grader and no service judges this run", allowed="a run whose [reward] has `grader` or `service`")
        return None

    async def keep_model(self, spec: RunSpec) -> None:
        """To be called once a run with this spec is stored: from then on nobody deletes its model.

        Raises SpecError if its model was a version that the other run has replaced and deleted since the check.
        """
        for field, model in {"model": spec.model, REWARD_MODEL: spec.reward.model, TEACHER: spec.teacher}.items():
            if model is None or model.lineage is None:
                continue
            if await self._run_models.keep(VersionFolder(model.files or {}, model.lineage, model.adapters)):
                continue
            message, allowed = "the other run has deleted this version meanwhile", '"last"; or the other run with a larger checkpoint.keep'
            raise SpecError([Fault(f"{field}.version", message, str(model.version), allowed)])

    def _code_faults(self, reward: RewardSpec | None, data: StoredData | None, environment: EnvironmentSpec | None) -> list[Fault]:
        of_reward = reward_faults(reward, data, self._settings) if reward else ()
        return [*of_reward, *environment_faults(environment)]

    async def _stored_frozen(
        self, reward: RewardSpec | None, given: TeacherSpec | None, caller: str, policy: StoredModel | None
    ) -> FrozenModels:
        scorer, of_scorer = await self._stored(reward.model if reward else None, caller, self._models.store_reward_model, REWARD_MODEL)
        if given is not None and given.url is not None and not any(model_faults(given)):
            server, of_server = await self._teachers.found(given, policy)
            return FrozenModels(scorer, None, (*of_scorer, *of_server), server)
        teacher, of_teacher = await self._stored(given, caller, self._models.store, TEACHER)
        return FrozenModels(scorer, teacher, (*of_scorer, *of_teacher))

    async def _stored(
        self, model: ModelSpec | None, caller: str, store: _Store, field: str = "model", kind: Kind = "rl"
    ) -> tuple[StoredModel | None, list[Fault]]:
        """The model of `field`, in object storage; or None and its faults, which `parse_spec` has listed already if it has no source."""
        if model is None or any(model_faults(model)):
            return None, []
        given = model.files
        try:
            if model.run is not None:
                version: Version = "last" if model.version is None else model.version
                found = await self._run_models.resolve(model.run, version, caller, field, kind)
                model = of_version(model, found, field)
        except SpecError as error:
            return None, list(error.faults)
        stored, faults = await store(model, caller)
        if stored and model.run is not None and given not in (None, stored.spec.files):
            faults = [Fault("model.files", f"are not those of {model.source}", allowed="none: the gateway fills them in")]
        return stored, [replace(fault, path=field + fault.path.removeprefix("model")) for fault in faults]


def with_operator_scorer(body: object, service: str) -> object:
    """`body` with the operator's scorer in place of its own, so that the stored spec names it. The timeout is not changed.

    A run that trains on given responses has no scorer, nor one that a teacher judges, unless it has held-out rows, nor one whose rewards
    come from its environment alone.
    """
    if not service or not isinstance(body, Mapping) or body.get("kind", "rl") != "rl" or not _reads_reward(body):
        return body
    given = body.get("reward")
    sources = {"grader", "service", "model", "changes"}
    others = {name: value for name, value in given.items() if name not in sources} if isinstance(given, Mapping) else {}
    return {**body, "reward": {**others, "service": service}}


def _reads_reward(body: Mapping[str, Any]) -> bool:
    if body.get("environment") is not None and _valid(RewardSpec, body.get("reward") or {}) == RewardSpec():
        return False  # the environment gives the rewards
    algorithm, data = _valid(AlgorithmSpec, body.get("algorithm", {})), body.get("data")
    return algorithm is None or algorithm.reads_rewards or (isinstance(data, Mapping) and data.get("eval") is not None)


def _field_of_scorer(path: str) -> str:
    """The path of a fault of the first change, within its scorer."""
    return "(body)" if path == "reward.changes.0" else path.removeprefix("reward.changes.0.")


def _valid(kind: type[Section], value: object) -> Section | None:
    """The section, or None if it is not valid: `parse_spec` has listed its faults."""
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None

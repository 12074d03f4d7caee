"""Models that are versions of other runs: from a run and a version to the files of a model folder, none of which is copied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradbus.access.keyring import Keyring
from gradbus.errors import Fault, SpecError
from gradbus.objects import ObjectStore
from gradbus.spec import AncestorSpec, Kind, LineageSpec, ModelSpec, RunSpec, Version
from gradbus.v1.weight_store_service_pb2 import ListCheckpointsRequest
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.runs.relations import RunRelations
from gradbus_gateway.runs.store import Run, RunStore
from gradbus_gateway.runs.version_files import version_files

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub

_SCOPE: Final = "runs:read"
_REWARD_MODEL: Final = "reward_model"
_FROZEN: Final = frozenset({"teacher", "reward.model"})
"""Fields of models that are not trained, and that nobody puts adapters beside."""
_TIMEOUT_SECONDS: Final = 15.0
_MAX_ANCESTORS: Final = 64
_MAX_SHOWN: Final = 10
_RUN_ID: Final = re.compile(r"run-[0-9a-f]{12}-[0-9a-f]{6}")


@dataclass(frozen=True, slots=True)
class VersionFolder:
    """A version of a run, as a model folder."""

    files: dict[str, str]
    """File name to digest."""
    lineage: LineageSpec
    """The version, before what its own model comes from."""
    adapters: str | None = None
    """Of a run that trains adapters: the digest of the version's, beside the files of the base."""


class RunModels:
    """Finds the files of versions of runs."""

    def __init__(
        self, runs: RunStore, relations: RunRelations, weights: WeightStoreServiceAsyncStub, objects: ObjectStore, keyring: Keyring
    ) -> None:
        self._runs = runs
        self._relations = relations
        self._weights = weights
        self._objects = objects
        self._keyring = keyring

    async def resolve(self, run: str, version: Version, caller: str, field: str = "model", kind: Kind = "rl") -> VersionFolder:
        """The files of a committed version of the run with the id or name `run`; `caller` is the API key that asks for it.

        `kind` is that of the run that has the field. Raises SpecError with a fault of `<field>.run` or `<field>.version`.
        """
        parent = await self._find(run, caller, f"{field}.run")
        spec = parent.record.spec
        _check_kind(spec.kind, kind, f"{field}.run", run)
        if spec.trainer.lora is not None and field in _FROZEN:
            allowed = (
                f"a run that trains every weight; or merge its adapters: `gradbus export {parent.run_id} DIR`, and DIR as the model's path"
            )
            raise _refusal(f"{field}.run", "the run trains adapters, which are no model by themselves", run, allowed)
        manifest = _chosen(await self._committed(parent.run_id), version, parent, field)
        if spec.trainer.lora is not None:
            return VersionFolder(dict(spec.model.files or {}), _lineage(parent, manifest), manifest.shards[0].digest)
        files = {file.name: file.digest for file in await version_files(self._objects, spec.model.files or {}, manifest)}
        return VersionFolder(files, _lineage(parent, manifest))

    async def spec(self, found: VersionFolder) -> RunSpec:
        """The spec of the run whose version was found, as it is now. Raises the problem 404 if it has been deleted meanwhile."""
        return await self._runs.changed_spec(await self._runs.get(found.lineage.ancestors[0].run))

    async def adapter_faults(self, spec: RunSpec, model: ModelSpec) -> Sequence[Fault]:
        """Faults of a run with this spec, which would go on with the adapters of its stored model."""
        if model.adapters is None or model.lineage is None:
            return ()
        parent = await self._runs.find(model.lineage.ancestors[0].run)
        trained = None if parent is None else parent.record.spec.trainer.lora
        if trained is None or trained == spec.trainer.lora:
            return ()
        given = "none" if spec.trainer.lora is None else spec.trainer.lora.model_dump_json()
        message = f"the run goes on with the adapters of {model.source}, which have other settings"
        merged = f"to begin others beside merged weights: `gradbus export {model.run} DIR`, and DIR as the model's path"
        return [Fault("trainer.lora", message, given, f"{trained.model_dump_json()}; {merged}")]

    async def keep(self, found: VersionFolder) -> bool:
        """Whether the files are still stored, to be called after the run that names them was: from then on nobody deletes them.

        Retention may have deleted a version that was replaced between `resolve` and then.
        """
        await self._committed(found.lineage.ancestors[0].run)  # waits for a deletion under way
        return await self._objects.has_blobs([*found.files.values(), *([found.adapters] if found.adapters else [])])

    async def _find(self, run: str, caller: str, path: str) -> Run:
        key = self._keyring.by_id(caller)
        if key is None or not key.allows(_SCOPE):
            raise _refusal(path, f"key {caller} may not read runs", run, f"a key with the scope {_SCOPE}, or a model by its path")
        try:
            found = await self._runs.find(run)
            # A name never stands for the id of a run that is gone.
            if found is None and not _RUN_ID.fullmatch(run) and (newest := await self._relations.newest(run)):
                found = await self._runs.find(newest)
        except ProblemError as error:  # its record cannot be read, which is no fault of this gateway
            raise _refusal(path, error.detail, run, "another run") from None
        if found is None:
            raise _refusal(path, "there is no such run", run, "the id or the name of a run that `gradbus runs` lists")
        return found

    async def _committed(self, run_id: str) -> Sequence[WeightManifest]:
        answer = await self._weights.ListCheckpoints(ListCheckpointsRequest(run_id=run_id), timeout=_TIMEOUT_SECONDS)
        return answer.versions


def of_version(model: ModelSpec, found: VersionFolder, field: str = "model") -> ModelSpec:
    """`model`, which names a run, with the files, the adapters, the step and the lineage of the version that was found.

    A stored spec that is submitted again has adapters and a lineage already, and they must be the same. Raises SpecError if they are not.
    """
    parent = found.lineage.ancestors[0]
    if model.adapters not in (None, found.adapters):
        message = f"are not those of version {parent.version} of run {parent.run}"
        raise _refusal(f"{field}.adapters", message, "", "none: the gateway fills them in")
    if model.lineage not in (None, found.lineage):
        message = f"is not that of version {parent.version} of run {parent.run}"
        raise _refusal(f"{field}.lineage", message, "", "none: the gateway fills it in")
    stored = {"files": found.files, "adapters": found.adapters, "lineage": found.lineage}
    return model.model_copy(update={"run": parent.run, "version": parent.version, **stored})


def _check_kind(parent: Kind, child: Kind, path: str, run: str) -> None:
    """Raises SpecError if a run of kind `child` cannot use a version of a run of kind `parent` as the model of its field at `path`."""
    scores = parent == _REWARD_MODEL
    if path == "reward.model.run" and not scores:
        raise _refusal(
            path, f"the run is of kind {parent}, whose versions write text and score none", run, f"a run of kind {_REWARD_MODEL}"
        )
    if scores and (path == "teacher.run" or (path == "model.run" and child != _REWARD_MODEL)):
        message = f"the run is of kind {_REWARD_MODEL}, whose versions score text and write none"
        others = f', or kind = "{_REWARD_MODEL}"' if path == "model.run" else ""
        raise _refusal(path, message, run, f"a run of another kind{others}; the run scores samples as reward.model.run")


def _chosen(committed: Sequence[WeightManifest], version: Version, run: Run, field: str) -> WeightManifest:
    if not committed:
        every = run.record.spec.checkpoint.every
        advice = "a run that has one" if run.is_final else f"wait for the checkpoint of step {every}, or name a run that has one"
        raise _refusal(f"{field}.run", f"run {run.run_id} ({run.state}) has no checkpoint", "", advice)
    if version == "last":
        return committed[-1]
    for manifest in committed:
        if manifest.step == version:
            return manifest
    shown = ", ".join(str(manifest.step) for manifest in committed[-_MAX_SHOWN:])
    message = f"run {run.run_id} keeps no checkpoint of this step"
    raise _refusal(f"{field}.version", message, str(version), f'"last", or one of {shown}')


def _lineage(run: Run, manifest: WeightManifest) -> LineageSpec:
    model = run.record.spec.model
    parent = AncestorSpec(run=run.run_id, name=run.record.spec.name, version=manifest.step, digest=manifest.digest)
    older = model.lineage.ancestors if model.lineage else ()
    return LineageSpec(base=model.base, ancestors=(parent, *older)[:_MAX_ANCESTORS])


def _refusal(path: str, message: str, given: str, allowed: str) -> SpecError:
    return SpecError([Fault(path, message, given, allowed)])

"""Policy versions, and a version exported as a model folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import APIRouter, Query

from gradbus.formats.peft import ADAPTER_FILE, CONFIG_FILE, adapter_config
from gradbus.resources.page import Page
from gradbus.resources.versions import ExportFile, ExportMerge, ExportResource, VersionResource
from gradbus.v1.weight_store_service_pb2 import ListVersionsRequest, ListVersionsResponse
from gradbus.v1.weights_pb2 import WeightManifest
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.page import INT64_END, Limit
from gradbus_gateway.routes.authentication import LIST, READ
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep
from gradbus_gateway.runs.store import Run
from gradbus_gateway.runs.version_files import VersionFile, base_files, version_files

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["runs"], dependencies=[READ, LIST], route_class=StrictQueryRoute)
_TIMEOUT_SECONDS = 5.0


@router.get("/versions", summary="List policy versions", responses=problems(404, 500))
async def list_versions(
    run_id: str, gateway: GatewayDep, after: Annotated[int, Query(ge=-1, lt=INT64_END)] = -1, limit: Limit = 100
) -> Page[VersionResource]:
    """Stored versions, oldest first, each with the workers that have verified its checksum."""
    await gateway.runs.get(run_id)
    response = await _versions(gateway, run_id)
    found = [(str(manifest.step), _resource(manifest, response)) for manifest in _sorted(response) if manifest.step > after]
    return Page[VersionResource].of(found, limit)


@router.get("/export", summary="Export a version as a model folder", responses=problems(404, 409, 500))
async def export_run(
    run_id: str,
    gateway: GatewayDep,
    version: Annotated[int | None, Query(ge=0, lt=INT64_END, description="Default: the newest version that is stored whole.")] = None,
    adapters: Annotated[bool, Query(description="Only the trained adapters, in peft's format.")] = False,
) -> ExportResource:
    """Names and ids of the files of a folder in Hugging Face layout; download each by GET /v1/files/{id}."""
    run = await gateway.runs.get(run_id)
    if adapters and run.record.spec.trainer.lora is None:
        raise ProblemError(409, "no-adapters", f"run {run_id} trains every weight; export it without `adapters`")
    listed = _sorted(await _versions(gateway, run_id))
    manifests = [manifest for manifest in listed if _is_whole(manifest)]
    chosen = [manifest for manifest in manifests if version is None or manifest.step == version]
    if not chosen:
        kept = ", ".join(str(manifest.step) for manifest in manifests)
        detail = f"keeps these versions whole: {kept}; export one of them" if kept else "has no version yet; export it once it trains"
        raise ProblemError(409, "no-such-version", f"run {run_id} {detail}")
    manifest = chosen[-1]
    files, merge = await _files(gateway, run, manifest, adapters)
    return ExportResource(
        run_id=run_id,
        version=manifest.step,
        final=run.is_final and manifest is listed[-1],
        digest=manifest.digest,
        files=files,
        merge=merge,
    )


async def _files(gateway: Gateway, run: Run, manifest: WeightManifest, adapters: bool) -> tuple[list[ExportFile], ExportMerge | None]:
    model, lora = run.record.spec.model, run.record.spec.trainer.lora
    if lora is None:
        return _exported(await version_files(gateway.objects, model.files or {}, manifest)), None
    shard = manifest.shards[0]
    trained = ExportFile(name=ADAPTER_FILE, id=shard.digest, bytes=shard.size_bytes)
    if not adapters:
        return _exported(base_files(model.files or {})), ExportMerge(adapters=trained, scale=lora.scale)
    config = adapter_config(lora, (model.revision and model.path) or "")
    return [ExportFile(name=CONFIG_FILE, id=await gateway.objects.put_blob(config), bytes=len(config)), trained], None


def _exported(files: Iterable[VersionFile]) -> list[ExportFile]:
    return [ExportFile(name=file.name, id=file.digest, bytes=file.size_bytes) for file in files]


async def _versions(gateway: Gateway, run_id: str) -> ListVersionsResponse:
    return await gateway.weights.ListVersions(ListVersionsRequest(run_id=run_id), timeout=_TIMEOUT_SECONDS)


def _sorted(response: ListVersionsResponse) -> list[WeightManifest]:
    return sorted(response.manifests, key=lambda manifest: (manifest.step, manifest.term))


def _resource(manifest: WeightManifest, response: ListVersionsResponse) -> VersionResource:
    holders = [a.worker for a in response.attestations if (a.step, a.digest) == (manifest.step, manifest.digest)]
    size = sum(shard.size_bytes for shard in manifest.shards)
    return VersionResource(
        version=manifest.step,
        term=manifest.term,
        digest=manifest.digest,
        noop=manifest.noop,
        bytes=size,
        whole=_is_whole(manifest),
        held_by=sorted(set(holders)),
    )


def _is_whole(manifest: WeightManifest) -> bool:
    return not any(shard.delta_only for shard in manifest.shards)

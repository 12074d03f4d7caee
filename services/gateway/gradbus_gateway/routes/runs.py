"""Runs: submit, list, show, pause, resume, cancel."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from gradbus.access.api_keys import ApiKeyRecord
from gradbus.spec import RunSpec
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.intake.submission import Submission, parse_body
from gradbus_gateway.resources.page import Limit, Page
from gradbus_gateway.resources.runs import RunResource, RunSummary
from gradbus_gateway.routes.authentication import READ, WRITE
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=StrictQueryRoute)
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": {"schema": RunSpec.model_json_schema()}}}}


@router.post("", status_code=201, summary="Submit a run", openapi_extra=_BODY)
async def post_run(
    request: Request,
    response: Response,
    gateway: GatewayDep,
    key: Annotated[ApiKeyRecord, WRITE],
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> RunResource:
    """The body is a run spec, as JSON or (with `Content-Type: application/toml`) as TOML. The files that it names are stored.

    A repeated `Idempotency-Key` with the same body returns the same run; with another body it is refused.
    """
    body = parse_body(await request.body(), request.headers.get("content-type", ""))
    run = await gateway.intake.submit(Submission(body, key.id, idempotency_key))
    response.headers["Location"] = f"/v1/runs/{run.run_id}"
    return RunResource.full(run)


@router.get("", dependencies=[READ], summary="List runs")
async def list_runs(gateway: GatewayDep, after: str = "", limit: Limit = 20) -> Page[RunSummary]:
    """Newest first."""
    found = await gateway.runs.page(after, limit + 1)
    return Page[RunSummary].of([(run.run_id, RunSummary.of(run)) for run in found], limit)


@router.get("/{run_id}", dependencies=[READ], summary="Show a run")
async def get_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """State, progress and spec."""
    return RunResource.full(await gateway.runs.get(run_id))


@router.post("/{run_id}/cancel", dependencies=[WRITE], summary="Cancel a run")
async def cancel_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """A cancelled run cannot be resumed; its versions and checkpoints are kept. Cancelling twice is no error."""
    return RunResource.full(await gateway.runs.request(run_id, "cancel"))


@router.post("/{run_id}/pause", dependencies=[WRITE], summary="Pause a run")
async def pause_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """Training stops within two steps."""
    return RunResource.full(await gateway.runs.request(run_id, "pause"))


@router.post("/{run_id}/resume", dependencies=[WRITE], summary="Resume a paused run")
async def resume_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """The run continues where it stopped."""
    return RunResource.full(await gateway.runs.request(run_id, "resume"))

"""Runs: submit, list, show, and say what is wanted."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from gradbus.access.api_keys import ApiKeyRecord
from gradbus.spec import RunSpec
from gradbus_gateway.http.strict_query import KnownParameters
from gradbus_gateway.intake.submission import Request as Submission
from gradbus_gateway.intake.submission import parse_body, submit
from gradbus_gateway.resources.runs import Page, RunResource, RunSummary
from gradbus_gateway.routes.authentication import READ, WRITE
from gradbus_gateway.routes.dependencies import Here

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=KnownParameters)
Limit = Annotated[int, Query(ge=1, le=1000, description="Most items on a page.")]
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/json": {"schema": RunSpec.model_json_schema()}}}}


@router.post("", status_code=201, summary="Submit a run", openapi_extra=_BODY)
async def post_run(
    request: Request,
    response: Response,
    gateway: Here,
    key: Annotated[ApiKeyRecord, WRITE],
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> RunResource:
    """The body is a run spec, as JSON or (with `Content-Type: application/toml`) as TOML. Files it names are taken into the store.

    A repeated `Idempotency-Key` with the same body is answered with the same run; with another body it is refused.
    """
    body = parse_body(await request.body(), request.headers.get("content-type", ""))
    run = await submit(gateway, Submission(body, key.id, idempotency_key))
    response.headers["Location"] = f"/v1/runs/{run.record.run_id}"
    return RunResource.whole(run)


@router.get("", dependencies=[READ], summary="List runs")
async def list_runs(gateway: Here, after: str = "", limit: Limit = 20) -> Page[RunSummary]:
    """Newest first."""
    found = await gateway.runs.page(after, limit + 1)
    return Page[RunSummary].of([(run.run_id, RunSummary.of(run)) for run in found], limit)


@router.get("/{run_id}", dependencies=[READ], summary="Show a run")
async def get_run(run_id: str, gateway: Here) -> RunResource:
    """State, progress and spec."""
    return RunResource.whole(await gateway.runs.get(run_id))


@router.post("/{run_id}/cancel", dependencies=[WRITE], summary="Cancel a run")
async def cancel_run(run_id: str, gateway: Here) -> RunResource:
    """For good; what it has trained stays. Cancelling twice is no error."""
    return RunResource.whole(await gateway.runs.wish(run_id, "cancel"))


@router.post("/{run_id}/pause", dependencies=[WRITE], summary="Pause a run")
async def pause_run(run_id: str, gateway: Here) -> RunResource:
    """Training stops within two steps."""
    return RunResource.whole(await gateway.runs.wish(run_id, "pause"))


@router.post("/{run_id}/resume", dependencies=[WRITE], summary="Resume a paused run")
async def resume_run(run_id: str, gateway: Here) -> RunResource:
    """Goes on where it stopped."""
    return RunResource.whole(await gateway.runs.wish(run_id, "resume"))

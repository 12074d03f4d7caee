"""Runs: submit, list, show, tag, pause, resume, cancel, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request, Response

from gradbus.access.api_keys import ApiKeyRecord
from gradbus.control.annotations import MOST_TAGS, AnnotationChange, Tag
from gradbus.resources.page import Page
from gradbus.resources.runs import RunResource, RunSummary
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.intake.submission import SPEC_BODY, Submission
from gradbus_gateway.resources.page import Limit
from gradbus_gateway.resources.runs import run_resource, run_summary
from gradbus_gateway.routes.authentication import LIST, READ, WRITE
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=StrictQueryRoute)
Tags = Annotated[Sequence[Tag], Query(max_length=MOST_TAGS, description="Only runs with this tag; repeated: with all of them.")]
_OF_AN_ACTION: Final = problems(404, 409, 500)


@router.post("", status_code=201, summary="Submit a run", openapi_extra=SPEC_BODY, responses=problems(400))
async def post_run(
    request: Request,
    response: Response,
    gateway: GatewayDep,
    key: Annotated[ApiKeyRecord, WRITE],
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> RunResource:
    """The body is a run spec, as JSON or (with `Content-Type: application/toml`) as TOML. The files that it names are stored.

    With `fork_of`, a run and one of its checkpoints, it is that run's spec with this version as the model; it gives only what is to be
    different.

    A repeated `Idempotency-Key` with the same body returns the same run; with another body it is refused.
    """
    body = await gateway.intake.read(request, key.id)
    run = await gateway.intake.submit(Submission(body, key.id, idempotency_key))
    response.headers["Location"] = f"/v1/runs/{run.run_id}"
    return run_resource(run)


@router.get("", dependencies=[READ, LIST], summary="List runs")
async def list_runs(gateway: GatewayDep, tag: Tags = (), after: str = "", limit: Limit = 20) -> Page[RunSummary]:
    """Newest first."""
    found = await gateway.run_list.page(after, limit + 1, tag)
    return Page[RunSummary].of([(run.run_id, run_summary(run)) for run in found], limit)


@router.get("/{run_id}", dependencies=[READ], summary="Show a run", responses=problems(404, 500))
async def get_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """State, progress and spec."""
    return run_resource(await gateway.runs.get(run_id))


@router.patch("/{run_id}", dependencies=[WRITE], summary="Change the tags and the note of a run", responses=problems(400, 404, 409, 500))
async def patch_run(run_id: str, change: AnnotationChange, gateway: GatewayDep) -> RunResource:
    """A run may have them in any state, and computes the same with them. What the body leaves out stays."""
    return run_resource(await gateway.runs.annotate(run_id, change))


@router.post("/{run_id}/cancel", dependencies=[WRITE], summary="Cancel a run", responses=_OF_AN_ACTION)
async def cancel_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """A cancelled run cannot be resumed; its versions and checkpoints are kept. Cancelling twice is no error."""
    return run_resource(await gateway.runs.request(run_id, "cancel"))


@router.post("/{run_id}/pause", dependencies=[WRITE], summary="Pause a run", responses=_OF_AN_ACTION)
async def pause_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """Training stops within two steps."""
    return run_resource(await gateway.runs.request(run_id, "pause"))


@router.post("/{run_id}/resume", dependencies=[WRITE], summary="Resume a paused run", responses=_OF_AN_ACTION)
async def resume_run(run_id: str, gateway: GatewayDep) -> RunResource:
    """The run continues where it stopped."""
    return run_resource(await gateway.runs.request(run_id, "resume"))


@router.delete("/{run_id}", dependencies=[WRITE], status_code=204, summary="Delete a finished run", responses=_OF_AN_ACTION)
async def delete_run(run_id: str, gateway: GatewayDep) -> None:
    """The run is gone at once for every request; its events, samples, versions and checkpoints are removed soon after.

    Files that no other run names follow later. A run that has not ended answers 409: cancel it first. Deleting
    again succeeds, for a day after the run is gone.
    """
    await gateway.runs.delete(run_id)

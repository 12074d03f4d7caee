"""The events of a run, as a list or as server-sent events."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from gradbus.bus import EventLog
from gradbus.resources.page import Page
from gradbus.resources.runs import EventResource
from gradbus_gateway.events.revocation import while_allowed
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.request_limits import admission_of
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.page import INT64_END, Limit
from gradbus_gateway.resources.runs import event_resource
from gradbus_gateway.routes.authentication import LIST, READ, may_still_read
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/runs/{run_id}/events", tags=["runs"], dependencies=[READ, LIST], route_class=StrictQueryRoute)


@router.get(
    "",
    response_model=Page[EventResource],
    summary="List events of a run",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **problems(404, 500)},
)
async def list_events(
    run_id: str,
    request: Request,
    gateway: GatewayDep,
    last_event_id: Annotated[int | None, Header(ge=0, lt=INT64_END)] = None,
    after: Annotated[int, Query(ge=0, lt=INT64_END, description="Only events after this id.")] = 0,
    limit: Limit = 100,
) -> Page[EventResource] | StreamingResponse:
    """State changes, metrics, evaluations, checkpoints, alarms: oldest first.

    With `Accept: text/event-stream` they are streamed as they happen, from `Last-Event-ID` or `after` on; the stream ends with the run,
    and soon after the caller's key is revoked or its session ends.
    """
    await gateway.runs.get(run_id)
    if "text/event-stream" in request.headers.get("accept", ""):
        admission_of(request).follow()
        events = gateway.feeds.follow(run_id, after if last_event_id is None else last_event_id)
        stream = while_allowed(events, partial(may_still_read, request))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    found = await EventLog(gateway.bus, run_id).read(after, limit + 1)
    return Page[EventResource].of([(str(event.sequence), event_resource(event)) for event in found], limit)

"""The events of a run, as a list or as server-sent events, and its metrics as columns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from gradbus.bus import EventLog
from gradbus.resources.history import HistoryResource
from gradbus.resources.page import Page
from gradbus.resources.runs import EventResource
from gradbus_gateway.events.revocation import while_allowed
from gradbus_gateway.history.table import Selection, Table
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.request_limits import admission_of
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.history import history_event, history_table
from gradbus_gateway.resources.page import INT64_END, Limit
from gradbus_gateway.resources.runs import event_resource
from gradbus_gateway.routes.authentication import LIST, READ, may_still_read
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["runs"], dependencies=[READ], route_class=StrictQueryRoute)
_POINTS = (
    "Most buckets of steps, beside the first step and the newest 50; fewer of many metrics: metrics times buckets are at most 262,144."
)
_Points = Annotated[int, Query(ge=2, le=2000, description=_POINTS)]
_From = Annotated[int | None, Query(alias="from", ge=0, lt=1 << 53, description="The first step; by default that of the run.")]
_To = Annotated[int | None, Query(ge=0, lt=1 << 53, description="The last step; by default the newest.")]
_Columns = Annotated[Sequence[str], Query(max_length=200, description="Only metrics of this name; repeated: all of these.")]
_Events = Annotated[int, Query(ge=0, le=400, description="How many of the newest events that are no metrics are added.")]


@router.get(
    "/events",
    response_model=Page[EventResource],
    dependencies=[LIST],
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """The part of a history that is asked for."""

    start: int | None
    end: int | None
    points: int
    names: frozenset[str] | None

    def of(self, table: Table) -> Selection:
        """That part of a table."""
        return table.select(self.start, self.end, self.points, self.names)


async def _asked(points: _Points = 500, from_: _From = None, to: _To = None, column: _Columns = ()) -> _Asked:
    if from_ is not None and to is not None and from_ > to:
        fault = {"path": "query.from", "message": "`from` is a later step than `to`", "given": str(from_)}
        raise ProblemError(422, "invalid-request", "`from` is a later step than `to`: exchange them", [fault])
    return _Asked(from_, to, points, frozenset(column) or None)


@router.get("/history", response_model=HistoryResource, summary="Show the metrics of a run as columns", responses=problems(404, 500))
async def get_history(
    run_id: str, request: Request, gateway: GatewayDep, asked: Annotated[_Asked, Depends(_asked)], events: _Events = 0
) -> Response:
    """For charts: as many points as a chart has room for, however many steps the run has.

    Steps are merged into buckets with their smallest, largest, mean and last value. If the run has no more than `points` steps from `from`
    to `to`, they come exactly as they were reported. There are at most 512 metrics, those that were reported first. The events have every
    step and every metric.
    """
    await gateway.runs.get(run_id)
    history, is_whole = await gateway.histories.of(run_id)
    await admission_of(request).take_list_turn()  # not before: a request that waits for the reading keeps no turn from others
    metrics, evaluations, happenings = asked.of(history.steps), asked.of(history.evaluations), history.happenings(events)
    newest = history.newest

    def document() -> str:
        return HistoryResource(
            run_id=run_id,
            newest=newest,
            is_whole=is_whole,
            metrics=history_table(metrics),
            evaluations=history_table(evaluations),
            events=[history_event(happening) for happening in happenings],
        ).model_dump_json()

    return Response(await asyncio.to_thread(document), media_type="application/json")

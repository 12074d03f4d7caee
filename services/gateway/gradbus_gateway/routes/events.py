"""The events of a run, as a list or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from gradbus.bus import Event, EventLog
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.page import Limit, Page
from gradbus_gateway.resources.runs import EventResource
from gradbus_gateway.routes.authentication import READ
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep

router = APIRouter(prefix="/v1/runs/{run_id}/events", tags=["runs"], dependencies=[READ], route_class=StrictQueryRoute)
_IDLE_SECONDS = 1.0
_HEARTBEAT_SECONDS = 15.0
_BATCH = 500  # events


@router.get(
    "",
    response_model=Page[EventResource],
    summary="List events of a run",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def list_events(
    run_id: str,
    request: Request,
    gateway: GatewayDep,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Limit = 100,
) -> Page[EventResource] | StreamingResponse:
    """State changes, metrics, evaluations, checkpoints, alarms: oldest first.

    With `Accept: text/event-stream` they are streamed as they happen, from `Last-Event-ID` or `after` on; the stream ends with the run.
    """
    await gateway.runs.get(run_id)
    log = EventLog(gateway.bus, run_id)
    if "text/event-stream" in request.headers.get("accept", ""):
        stream = _stream(gateway, log, run_id, after if last_event_id is None else last_event_id)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
    found = await log.read(after, limit + 1)
    return Page[EventResource].of([(str(event.sequence), EventResource.of(event)) for event in found], limit)


async def _stream(gateway: Gateway, log: EventLog, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
    """Events until the run has ended or the process drains. After an error clients continue by `Last-Event-ID`."""
    pending: asyncio.Queue[Event] = asyncio.Queue(_BATCH)
    reader = asyncio.create_task(_enqueue(log, after, pending), name=f"events of {run_id}")
    idle = 0.0
    try:
        while not gateway.stopping.is_set():
            try:
                event = await asyncio.wait_for(pending.get(), _IDLE_SECONDS)
            except TimeoutError:
                if reader.done():
                    reader.result()
                if (await gateway.runs.get(run_id)).is_final:
                    break
                idle += _IDLE_SECONDS
                if idle >= _HEARTBEAT_SECONDS:
                    idle = 0.0
                    yield KEEPALIVE_COMMENT
                continue
            idle, after = 0.0, event.sequence
            yield _formatted(event)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    while not gateway.stopping.is_set() and (rest := await log.read(after, _BATCH)):
        for event in rest:
            after = event.sequence
            yield _formatted(event)


async def _enqueue(log: EventLog, after: int, pending: asyncio.Queue[Event]) -> None:
    async for event in log.follow(after):
        await pending.put(event)


def _formatted(event: Event) -> bytes:
    return format_sse_event(data_str=EventResource.of(event).model_dump_json(), event=event.type, id=str(event.sequence))

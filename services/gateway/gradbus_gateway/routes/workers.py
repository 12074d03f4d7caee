"""Live workers, by their heartbeats."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final, Literal

from fastapi import APIRouter

from gradbus.control.live_workers import parse_presence
from gradbus.control.runs import WorkerPresence
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.page import Limit, Page
from gradbus_gateway.resources.public_text import public_text
from gradbus_gateway.routes.authentication import LIST, READ
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/workers", tags=["workers"], dependencies=[READ, LIST], route_class=StrictQueryRoute)
_TIMEOUT_SECONDS: Final = 5.0


class WorkerResource(WorkerPresence):
    """A live worker."""

    object: Literal["worker"] = "worker"


@router.get("", summary="List live workers")
async def list_workers(gateway: GatewayDep, after: str = "", limit: Limit = 100) -> Page[WorkerResource]:
    """By name. A worker without a heartbeat for six seconds is not listed, nor one whose heartbeat cannot be read."""
    async with asyncio.timeout(_TIMEOUT_SECONDS), gateway.workers.view() as view:
        entries = sorted((name, value) for name, value in view.entries.items() if name > after)
    read = ((name, worker) for name, value in entries if (worker := parse_presence(name, value)) is not None)
    found = [
        (name, WorkerResource(**worker.model_dump() | {"trouble": public_text(worker.trouble)}))
        for name, worker in islice(read, limit + 1)  # of a thousand workers the page alone is parsed
    ]
    return Page[WorkerResource].of(found, limit)

"""Live workers, by their heartbeats."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Final, Literal

from fastapi import APIRouter

from gradbus.control.runs import WorkerPresence, live_workers
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
        workers = live_workers(view.entries)
    found = [
        (worker.worker, WorkerResource(**worker.model_dump() | {"trouble": public_text(worker.trouble)}))
        for worker in workers
        if worker.worker > after
    ]
    return Page[WorkerResource].of(sorted(found, key=itemgetter(0))[: limit + 1], limit)

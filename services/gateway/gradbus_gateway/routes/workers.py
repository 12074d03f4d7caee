"""Live workers, by their heartbeats."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Query

from gradbus.control.runs import WorkerPresence
from gradbus.resources.page import Page
from gradbus.resources.workers import WorkerResource
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.page import Limit
from gradbus_gateway.resources.public_text import public_text
from gradbus_gateway.routes.authentication import LIST, READ
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/workers", tags=["workers"], dependencies=[READ, LIST], route_class=StrictQueryRoute)
_TIMEOUT_SECONDS: Final = 5.0


@router.get("", summary="List live workers")
async def list_workers(
    gateway: GatewayDep,
    run: Annotated[str, Query(description="Only workers that serve this run.")] = "",
    after: str = "",
    limit: Limit = 100,
) -> Page[WorkerResource]:
    """By name. A worker without a heartbeat for six seconds is not listed, nor one whose heartbeat cannot be read."""
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        live = await gateway.workers.current()
    found = [(name, _resource(worker)) for name, worker in live.page(after, limit + 1, run)]
    return Page[WorkerResource].of(found, limit)


def _resource(worker: WorkerPresence) -> WorkerResource:
    return WorkerResource(**worker.model_dump() | {"trouble": public_text(worker.trouble)})

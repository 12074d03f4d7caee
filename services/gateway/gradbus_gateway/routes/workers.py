"""Live workers, by their heartbeats."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from gradbus.control.runs import WorkerPresence
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.page import Limit, Page
from gradbus_gateway.routes.authentication import READ
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/workers", tags=["workers"], dependencies=[READ], route_class=StrictQueryRoute)


class WorkerResource(WorkerPresence):
    """A live worker."""

    object: Literal["worker"] = "worker"


@router.get("", summary="List live workers")
async def list_workers(gateway: GatewayDep, after: str = "", limit: Limit = 100) -> Page[WorkerResource]:
    """By name. A worker without a heartbeat for six seconds is not listed."""
    async with gateway.workers.view() as view:
        entries = dict(view.entries)
    found = [(name, WorkerResource.model_validate_json(entries[name])) for name in sorted(entries) if name > after]
    return Page[WorkerResource].of(found[: limit + 1], limit)

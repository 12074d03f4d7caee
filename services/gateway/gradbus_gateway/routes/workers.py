"""Who works."""

from __future__ import annotations

from fastapi import APIRouter

from gradbus_gateway.http.strict_query import KnownParameters
from gradbus_gateway.resources.runs import Page, WorkerResource
from gradbus_gateway.routes.authentication import READ
from gradbus_gateway.routes.dependencies import Here
from gradbus_gateway.routes.runs import Limit

router = APIRouter(prefix="/v1/workers", tags=["workers"], dependencies=[READ], route_class=KnownParameters)


@router.get("", summary="Live workers")
async def list_workers(gateway: Here, after: str = "", limit: Limit = 100) -> Page[WorkerResource]:
    """By name; a worker that is silent for six seconds is not here."""
    async with gateway.workers.view() as view:
        entries = dict(view.entries)
    found = [(name, WorkerResource.model_validate_json(entries[name])) for name in sorted(entries) if name > after]
    return Page[WorkerResource].of(found[: limit + 1], limit)

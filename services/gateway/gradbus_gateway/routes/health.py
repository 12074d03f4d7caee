"""Health probes. They need no key, and their responses hold no data."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(tags=["health"])
Word = Annotated[str, Field(description="The status, as one word.")]


@router.get("/healthz", summary="Whether the process is alive")
async def healthz() -> dict[str, Word]:
    """The process responds."""
    return {"status": "ok"}


@router.get("/readyz", summary="Whether the gateway is ready", responses={503: {"description": "Not ready."}})
async def readyz(gateway: GatewayDep, response: Response) -> dict[str, Word]:
    """Ready while NATS is connected and the process does not drain."""
    ready = gateway.bus.client.is_connected and not gateway.stopping.is_set()
    response.status_code = 200 if ready else 503
    return {"status": "ready" if ready else "not ready"}

"""For probes: no key needed, nothing told."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from gradbus_gateway.routes.dependencies import Here

router = APIRouter(tags=["health"])
Word = Annotated[str, Field(description="One word.")]


@router.get("/healthz", summary="The process answers")
async def healthz() -> dict[str, Word]:
    """Alive."""
    return {"status": "ok"}


@router.get("/readyz", summary="The gateway can do its work", responses={503: {"description": "Not now."}})
async def readyz(gateway: Here, response: Response) -> dict[str, Word]:
    """Ready while NATS is connected and the process is not draining."""
    ready = gateway.bus.client.is_connected and not gateway.stopping.is_set()
    response.status_code = 200 if ready else 503
    return {"status": "ready" if ready else "not ready"}

"""Checks of run specs, without a run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request

from gradbus.access.api_keys import ApiKeyRecord
from gradbus.resources.spec_checks import SpecCheckResource
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.intake.submission import SPEC_BODY
from gradbus_gateway.routes.authentication import WRITE
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/spec-checks", tags=["runs"], route_class=StrictQueryRoute)


@router.post("", summary="Check a run spec", openapi_extra=SPEC_BODY, responses=problems(400))
async def post_spec_check(request: Request, gateway: GatewayDep, key: Annotated[ApiKeyRecord, WRITE]) -> SpecCheckResource:
    """Checks all that the submission of a run checks, and creates no run. Returns the spec with every default and digest filled in."""
    body = await gateway.intake.read(request, key.id)
    return SpecCheckResource(spec=await gateway.intake.check(body, key.id))

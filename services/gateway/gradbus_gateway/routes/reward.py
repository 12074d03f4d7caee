"""The reward of a run, and its change while the run goes on."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Request

from gradbus.access.api_keys import ApiKeyRecord
from gradbus.resources.reward import RewardResource
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.reward import reward_resource
from gradbus_gateway.routes.authentication import READ, WRITE
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep
from gradbus_gateway.runs.store import Run

router = APIRouter(prefix="/v1/runs/{run_id}/reward", tags=["runs"], route_class=StrictQueryRoute)
_SCHEMA: Final = {
    "type": "object",
    "description": "A scorer as in the section `[reward]`: `grader` or `service`, and what belongs to it; `from_group`, the first group "
    "that it may judge, if that is not to be the next.",
    "properties": {"from_group": {"type": "integer", "minimum": 0}, "grader": {"type": "object"}, "service": {"type": "string"}},
}
_TOML: Final = {"type": "string", "description": "The same as TOML."}
_CONTENT: Final = {"application/json": {"schema": _SCHEMA}, "application/toml": {"schema": _TOML}}
_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": _CONTENT}}


@router.get("", dependencies=[READ], summary="Show what judges a run", responses=problems(404, 500))
async def get_reward(run_id: str, gateway: GatewayDep) -> RewardResource:
    """The scorer of the spec, and those that took its place."""
    return await _resource(gateway, await gateway.runs.get(run_id))


@router.put("", summary="Change the scorer of a live run", openapi_extra=_BODY, responses=problems(400, 404, 409, 500))
async def put_reward(run_id: str, request: Request, gateway: GatewayDep, key: Annotated[ApiKeyRecord, WRITE]) -> RewardResource:
    """From the next group on that is not dispatched, this scorer judges, of training and of held-out rows.

    No group is judged by two scorers, and the change is part of the run: a crash, a resume and a fork keep it. A repeated request
    changes nothing. The body is checked as that of a submission; shadows and the timeout stay.
    """
    run = await gateway.runs.get(run_id)
    body = await gateway.intake.read(request, key.id)
    change = await gateway.intake.check_scorer(run.record.spec, body, key.id)
    await gateway.runs.change_scorer(run_id, change)
    return await _resource(gateway, run)


async def _resource(gateway: Gateway, run: Run) -> RewardResource:
    return reward_resource(run.run_id, run.record.spec, *await gateway.runs.scorers(run.run_id))

"""Plans of runs, without a run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from gradbus.access.api_keys import ApiKeyRecord
from gradbus.errors import SettingsError
from gradbus.plan import CARDS, DEFAULT_CARD, MOST_CARDS, card_of
from gradbus.plan.document import plan_document
from gradbus.resources.plans import PlanResource
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.intake.plan import PlanQuestion
from gradbus_gateway.intake.submission import SPEC_BODY
from gradbus_gateway.routes.authentication import WRITE
from gradbus_gateway.routes.dependencies import GatewayDep

router = APIRouter(prefix="/v1/plans", tags=["runs"], route_class=StrictQueryRoute)
_MAX_TOKENS = 1 << 24
_Tokens = Annotated[int | None, Query(ge=1, le=_MAX_TOKENS, description="Mean; by default, of `gradbus plan`.")]


async def _question(
    gpu: Annotated[str, Query(max_length=32, description=f"One of: {', '.join(CARDS)}.")] = DEFAULT_CARD,
    gpus: Annotated[int, Query(ge=1, le=MOST_CARDS, description="Number of cards.")] = 1,
    prompt_tokens: _Tokens = None,
    response_tokens: _Tokens = None,
) -> PlanQuestion:
    try:
        return PlanQuestion(card_of(gpu), gpus, prompt_tokens, response_tokens)
    except SettingsError as error:
        raise ProblemError(400, "unknown-card", str(error)) from error


@router.post("", summary="Plan a run", openapi_extra=SPEC_BODY, responses=problems(400))
async def post_plan(
    request: Request, gateway: GatewayDep, key: Annotated[ApiKeyRecord, WRITE], question: Annotated[PlanQuestion, Depends(_question)]
) -> PlanResource:
    """Checks a submission as `POST /v1/spec-checks` does and creates no run. Returns its memory, what fits, and seconds of a step."""
    spec = await gateway.intake.check(await gateway.intake.read(request, key.id), key.id)
    plan = await gateway.planner.plan(spec, question, key.id)
    return PlanResource.model_validate(plan_document(plan))

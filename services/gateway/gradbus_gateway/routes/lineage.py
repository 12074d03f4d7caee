"""The lineage of a run."""

from __future__ import annotations

from fastapi import APIRouter

from gradbus_gateway.http.description import problems
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.lineage import LineageResource, RelatedRun
from gradbus_gateway.resources.page import Limit
from gradbus_gateway.routes.authentication import LIST, READ
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep
from gradbus_gateway.runs.store import Run

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["runs"], dependencies=[READ, LIST], route_class=StrictQueryRoute)


@router.get("/lineage", summary="Show a run's ancestors and children", responses=problems(404, 500))
async def get_lineage(run_id: str, gateway: GatewayDep, limit: Limit = 100) -> LineageResource:
    """From the model that the first run started from to the runs that start from this one. Deleted ancestors are listed as `deleted`."""
    run = await gateway.runs.get(run_id)
    model = run.record.spec.model
    ancestors = model.lineage.ancestors if model.lineage else ()
    children = await gateway.relations.children(run_id)
    return LineageResource(
        run_id=run_id,
        name=run.record.spec.name,
        base=model.base,
        ancestors=[RelatedRun.ancestor(one, gateway.run_list.find(one.run)) for one in reversed(ancestors)],
        children=[child for child_id in children[:limit] if (child := _child(gateway, child_id))],
        has_more=len(children) > limit,
    )


def _child(gateway: Gateway, run_id: str) -> RelatedRun | None:
    """None for a run that was deleted a moment ago."""
    run = gateway.run_list.find(run_id)
    if not isinstance(run, Run) or run.record.spec.model.lineage is None:
        return None
    return RelatedRun.child(run, run.record.spec.model.lineage.ancestors[0])

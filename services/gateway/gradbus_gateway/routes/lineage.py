"""The lineage of a run."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter

from gradbus.resources.lineage import LineageResource, RelatedRun, Role
from gradbus.spec import ModelSpec
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.lineage import ancestor, child
from gradbus_gateway.resources.page import Limit
from gradbus_gateway.routes.authentication import LIST, READ
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep
from gradbus_gateway.runs.store import Run

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["runs"], dependencies=[READ, LIST], route_class=StrictQueryRoute)


@router.get("/lineage", summary="Show a run's ancestors and children", responses=problems(404, 500))
async def get_lineage(run_id: str, gateway: GatewayDep, limit: Limit = 100) -> LineageResource:
    """From the first run's model to the runs that take a version of this one. Deleted ancestors are listed as `deleted`."""
    run = await gateway.runs.get(run_id)
    spec = run.record.spec
    children = await gateway.relations.children(run_id)
    return LineageResource(
        run_id=run_id,
        name=spec.name,
        base=spec.model.base,
        ancestors=_ancestors(gateway, "model", spec.model),
        reward_model=_ancestors(gateway, "reward_model", spec.reward.model),
        teacher=_ancestors(gateway, "teacher", spec.teacher),
        children=[child for child_id in children[:limit] for child in _children(gateway, run_id, child_id)],
        has_more=len(children) > limit,
    )


def _ancestors(gateway: Gateway, role: Role, model: ModelSpec | None) -> list[RelatedRun]:
    """Oldest first."""
    found = model.lineage.ancestors if model and model.lineage else ()
    return [ancestor(role, one, gateway.run_list.find(one.run)) for one in reversed(found)]


def _children(gateway: Gateway, parent_id: str, run_id: str) -> Iterator[RelatedRun]:
    """The run, once for each role in which it takes a version of its parent; nothing if it was deleted a moment ago."""
    run = gateway.run_list.find(run_id)
    if not isinstance(run, Run):
        return
    spec = run.record.spec
    models: dict[Role, ModelSpec | None] = {"model": spec.model, "reward_model": spec.reward.model, "teacher": spec.teacher}
    for role, model in models.items():
        if model and model.lineage and model.lineage.ancestors[0].run == parent_id:
            yield child(role, run, model.lineage.ancestors[0])

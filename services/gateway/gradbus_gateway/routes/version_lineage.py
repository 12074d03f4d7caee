"""The lineage of a version: what made it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query
from google.protobuf.message import DecodeError

from gradbus.algorithms import Algorithm, algorithm_of
from gradbus.experience.reader import read_experience
from gradbus.experience.steps import step_teller
from gradbus.resources.version_lineage import TrainedGroup, VersionLineageResource
from gradbus.run_files.versions import read_digest
from gradbus.spec import ScheduleSpec
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import VERDICT_TRAIN, LogEntry
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.page import INT64_END, Limit
from gradbus_gateway.resources.version_lineage import scorers_of, trained_group
from gradbus_gateway.routes.authentication import LIST, READ
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep
from gradbus_gateway.runs.store import Run

router = APIRouter(prefix="/v1/runs/{run_id}/versions", tags=["runs"], dependencies=[READ, LIST], route_class=StrictQueryRoute)
_log = get_logger(__name__)
_PAGE_CHARACTERS: Final = 16 << 20
Version = Annotated[int, Path(ge=0, lt=INT64_END)]
Step = Annotated[int | None, Query(ge=0, lt=INT64_END, description="Only the groups of this step; steps 0 to v - 1 make version v.")]
After = Annotated[int, Query(ge=0, lt=INT64_END, description="`next_after` of the previous page.")]


@router.get("/{version}/lineage", summary="Show what made a version", responses=problems(404, 500))
async def get_version_lineage(
    run_id: str, version: Version, gateway: GatewayDep, step: Step = None, after: After = 0, limit: Limit = 100
) -> VersionLineageResource:
    """The groups of all steps before it, archived ones included, and what judged them. Of long prompts a page has fewer groups."""
    run = await gateway.runs.get(run_id)
    spec = await gateway.runs.changed_spec(run)
    algorithm, digest = algorithm_of(spec), await _digest(gateway, run, version)
    steps = range(version) if step is None else range(step, min(step + 1, version))
    found: list[tuple[int, TrainedGroup]] = []
    position, characters = 0, 0
    async with aclosing(_entries(gateway, run_id, spec.schedule, steps)) as entries:
        async for entry, entry_step, entry_digest in entries:
            position += 1
            if position <= after or (group := _group(entry, entry_step, entry_digest, algorithm)) is None:
                continue
            found.append((position, group))
            characters += len(group.prompt)
            if len(found) > limit or (characters > _PAGE_CHARACTERS and len(found) > 1):
                limit = min(limit, len(found) - 1)
                break
    has_more = len(found) > limit
    return VersionLineageResource(
        run_id=run_id,
        name=spec.name,
        version=version,
        digest=digest,
        base=spec.model.base,
        parent=spec.model.lineage.ancestors[0] if spec.model.lineage else None,
        scorers=list(scorers_of(spec)),
        groups=[group for _, group in found[:limit]],
        has_more=has_more,
        next_after=found[limit - 1][0] if has_more else None,
    )


async def _digest(gateway: Gateway, run: Run, version: int) -> str | None:
    """None for a version that was trained and not published. Raises the problem 404 for one that was not trained."""
    digest = await read_digest(gateway.objects, run.run_id, version)
    reached = run.status.progress.step if run.status else 0
    if digest is None and version > reached:
        raise ProblemError(
            404, "no-such-version", f"run {run.run_id} is at step {reached} and has no version {version}; ask for an older one"
        )
    return digest


async def _entries(gateway: Gateway, run_id: str, schedule: ScheduleSpec, steps: range) -> AsyncGenerator[tuple[LogEntry, int, str], None]:
    """The log entries of these steps, with step and digest.

    The log is read from its beginning: which step takes a group may depend on all groups before it.
    """
    teller = step_teller(schedule)
    waiting: dict[int, tuple[LogEntry, str]] = {}
    left = len(steps) * schedule.groups_per_step if schedule.has_fixed_steps else -1
    if not steps:
        return
    async with aclosing(read_experience(gateway.buffer, gateway.objects, run_id)) as entries:
        async for stored, entry in entries:
            if entry is None:  # the group is made again, and has another entry
                continue
            waiting[entry.index] = entry, stored.digest
            for index, step in teller.add(entry.index, entry.verdict == VERDICT_TRAIN):
                logged, digest = waiting.pop(index)
                if step >= steps.stop and not schedule.has_fixed_steps:
                    return
                if step in steps:
                    yield logged, step, digest
                left -= step in steps
            if left == 0:
                return


def _group(entry: LogEntry, step: int, digest: str, algorithm: Algorithm) -> TrainedGroup | None:
    try:
        return trained_group(entry, step, digest, algorithm)
    except (DecodeError, ValueError) as error:
        _log.warning("group_unreadable", index=entry.index, error=f"{type(error).__name__}: {error}")
        return None

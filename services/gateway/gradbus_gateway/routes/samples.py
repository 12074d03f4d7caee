"""The samples of a run, read from its experience log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from gradbus.experience.reader import read_experience
from gradbus.experience.stream_ids import START, StreamId
from gradbus.spec import RunSpec, ScheduleSpec
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.logged_group import LoggedGroup
from gradbus_gateway.resources.page import Limit, Page
from gradbus_gateway.resources.samples import SampleResource
from gradbus_gateway.routes.authentication import READ
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep

router = APIRouter(prefix="/v1/runs/{run_id}/samples", tags=["runs"], dependencies=[READ], route_class=StrictQueryRoute)
Found = tuple[str, SampleResource]
"""Cursor and sample."""
Step = Annotated[int | None, Query(ge=0, description="Only samples that this step trains (`fixed_lag`).")]
Index = Annotated[int | None, Query(ge=0, description="Only samples of this group.")]
Row = Annotated[int | None, Query(ge=0, description="Only groups of this row of the dataset, counted from 0.")]
Include = Annotated[Literal["tokens"] | None, Query(description="`tokens`: with token ids and log-probabilities.")]
_AFTER = "`next_after` of the previous page, or `<milliseconds since 1970>-0.0`: only groups that entered the log since then."
After = Annotated[str, Query(pattern=r"^(\d{1,18}-\d{1,18}\.\d{1,9})?$", description=_AFTER)]


@dataclass(frozen=True, slots=True)
class SampleFilter:
    """Selects samples of one run."""

    indexes: range | None
    """Of groups; None for all."""
    row: int | None
    """Of the dataset; None for all."""
    with_tokens: bool


class SampleQuery:
    """The query parameters that select samples."""

    def __init__(self, step: Step = None, index: Index = None, row: Row = None, include: Include = None) -> None:
        self.step = step
        self.index = index
        self.row = row
        self.include = include

    def filter_for(self, schedule: ScheduleSpec) -> SampleFilter:
        """The filter for a run with this schedule. Raises the problem `invalid-request` for `step` with a `free` schedule."""
        if self.step is not None and schedule.mode != "fixed_lag":
            raise ProblemError(422, "invalid-request", "in a `free` schedule no step owns a group; leave `step` out and page with `after`")
        return SampleFilter(_indexes(schedule, self.step, self.index), self.row, self.include == "tokens")


@router.get("", summary="List samples of a run")
async def list_samples(
    run_id: str, gateway: GatewayDep, query: Annotated[SampleQuery, Depends()], after: After = "", limit: Limit = 20
) -> Page[SampleResource]:
    """In the order in which their groups entered the experience log, archived groups included."""
    spec = (await gateway.runs.get(run_id)).record.spec
    found: list[Found] = []
    async with aclosing(_samples(gateway, run_id, spec, after, query.filter_for(spec.schedule))) as samples:
        async for sample in samples:
            found.append(sample)
            if len(found) > limit:
                break
    return Page[SampleResource].of(found, limit)


def _indexes(schedule: ScheduleSpec, step: int | None, index: int | None) -> range | None:
    """Indexes of the selected groups; None for all."""
    of_step = range(step * schedule.groups_per_step, (step + 1) * schedule.groups_per_step) if step is not None else None
    if index is None:
        return of_step
    return range(index, index + 1) if of_step is None or index in of_step else range(0)


async def _samples(gateway: Gateway, run_id: str, spec: RunSpec, after: str, selected: SampleFilter) -> AsyncGenerator[Found, None]:
    last_entry, _, last_sample = after.rpartition(".")
    # The group in which the previous page ended is read again, for its other samples.
    start = StreamId.parse(last_entry).before() if last_entry else START
    left = len(selected.indexes) if selected.indexes is not None else -1
    if left == 0:
        return
    async with aclosing(read_experience(gateway.buffer, gateway.objects, run_id, start)) as entries:
        async for stored, entry in entries:
            if selected.indexes is not None and entry.index not in selected.indexes:
                continue
            group = LoggedGroup(stored.stream_id, entry, spec)
            if selected.row is None or group.row == selected.row:
                for number, sample in group.samples(with_tokens=selected.with_tokens):
                    if stored.stream_id != last_entry or number > int(last_sample):
                        yield f"{stored.stream_id}.{number}", sample
            left -= 1
            if left == 0:
                return

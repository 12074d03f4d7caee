"""What the model said, and how it was judged."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query

from gradbus.experience.reader import read_experience
from gradbus.spec import RunSpec, ScheduleSpec
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import KnownParameters
from gradbus_gateway.resources.group_samples import JudgedGroup
from gradbus_gateway.resources.runs import Page, SampleResource
from gradbus_gateway.routes.authentication import READ
from gradbus_gateway.routes.dependencies import Gateway, Here
from gradbus_gateway.routes.runs import Limit

router = APIRouter(prefix="/v1/runs/{run_id}/samples", tags=["runs"], dependencies=[READ], route_class=KnownParameters)
Found = tuple[str, SampleResource]
Step = Annotated[int | None, Query(ge=0, description="Only what this step trains (`fixed_lag`).")]
Index = Annotated[int | None, Query(ge=0, description="Only this group.")]
Row = Annotated[int | None, Query(ge=0, description="Only groups of this row of the dataset, counted from 0.")]
Include = Annotated[Literal["tokens"] | None, Query(description="`tokens`: ids and log-probabilities too.")]
_AFTER = "`next_after` of the page before, or `<milliseconds since 1970>-0.0`: only groups that entered the log since."
After = Annotated[str, Query(pattern=r"^(\d{1,18}-\d{1,18}\.\d{1,9})?$", description=_AFTER)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is shown of a run's samples."""

    indexes: range | None
    """Of groups; None for all."""
    row: int | None
    tokens: bool


class Narrowed:
    """What a caller asks for."""

    def __init__(self, step: Step = None, index: Index = None, row: Row = None, include: Include = None) -> None:
        self.step = step
        self.index = index
        self.row = row
        self.include = include

    def of(self, schedule: ScheduleSpec) -> Wanted:
        """The same for a run with this schedule. Raises the problem `invalid-request` when it cannot be had."""
        if self.step is not None and schedule.mode != "fixed_lag":
            raise ProblemError(422, "invalid-request", "in a `free` schedule no step owns a group; leave `step` out and page with `after`")
        return Wanted(_indexes(schedule, self.step, self.index), self.row, self.include == "tokens")


@router.get("", summary="Samples of a run")
async def list_samples(
    run_id: str, gateway: Here, narrowed: Annotated[Narrowed, Depends()], after: After = "", limit: Limit = 20
) -> Page[SampleResource]:
    """Completions in the order in which their groups entered the experience log, archived ones among them."""
    spec = (await gateway.runs.get(run_id)).record.spec
    found: list[Found] = []
    async with aclosing(_samples(gateway, run_id, spec, after, narrowed.of(spec.schedule))) as samples:
        async for sample in samples:
            found.append(sample)
            if len(found) > limit:
                break
    return Page[SampleResource].of(found, limit)


def _indexes(schedule: ScheduleSpec, step: int | None, index: int | None) -> range | None:
    """Group indexes that may be shown; None for all."""
    of_step = range(step * schedule.groups_per_step, (step + 1) * schedule.groups_per_step) if step is not None else None
    if index is None:
        return of_step
    return range(index, index + 1) if of_step is None or index in of_step else range(0)


async def _samples(gateway: Gateway, run_id: str, spec: RunSpec, after: str, wanted: Wanted) -> AsyncGenerator[Found, None]:
    stream_id, _, n = after.rpartition(".")
    if stream_id:
        # The group the page before ended in is read once more, for its other samples.
        milliseconds, serial = map(int, stream_id.split("-"))
        behind = f"{milliseconds}-{serial - 1}" if serial else f"{milliseconds - 1}-{2**63 - 1}"
    else:
        behind = "0-0"
    left = len(wanted.indexes) if wanted.indexes is not None else -1
    if left == 0:
        return
    async with aclosing(read_experience(gateway.buffer, gateway.objects, run_id, behind)) as entries:
        async for entry_id, entry in entries:
            if wanted.indexes is not None and entry.index not in wanted.indexes:
                continue
            group = JudgedGroup(entry_id, entry, spec)
            if wanted.row is None or group.group.row == wanted.row:
                for at, sample in group.samples(wanted.tokens):
                    if entry_id != stream_id or at > int(n):
                        yield f"{entry_id}.{at}", sample
            left -= 1
            if left == 0:
                return

"""The samples of a run, read from its experience log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Query
from google.protobuf.message import DecodeError

from gradbus.experience import StoredEntry
from gradbus.experience.reader import read_experience
from gradbus.experience.stream_ids import START, StreamId
from gradbus.resources.page import Page
from gradbus.resources.samples import SampleResource
from gradbus.spec import RunSpec, ScheduleSpec
from gradbus.telemetry import get_logger
from gradbus.v1.group_pb2 import LogEntry
from gradbus_gateway.http.description import problems
from gradbus_gateway.http.problems import ProblemError
from gradbus_gateway.http.strict_query import StrictQueryRoute
from gradbus_gateway.resources.dataset_rows import add_item
from gradbus_gateway.resources.logged_group import LoggedGroup, admission_time
from gradbus_gateway.resources.page import INT64_END, Limit
from gradbus_gateway.resources.sample_search import SampleSearch
from gradbus_gateway.resources.samples import held_bytes, unreadable_sample
from gradbus_gateway.routes.authentication import LIST, READ
from gradbus_gateway.routes.dependencies import Gateway, GatewayDep

router = APIRouter(prefix="/v1/runs/{run_id}/samples", tags=["runs"], dependencies=[READ, LIST], route_class=StrictQueryRoute)
_log = get_logger(__name__)
_PAGE_BYTES: Final = 16 << 20
_UNREADABLE: Final = (DecodeError, LookupError, ValueError)
_SEARCHED_GROUPS: Final = 20_000
_AFTER_ALL: Final = 999_999_999
"""Above the number of every sample of a group."""
Found = tuple[str, SampleResource]
"""Cursor and sample."""
Step = Annotated[
    int | None, Query(ge=0, lt=INT64_END, description="Only samples that this step trains (`fixed_lag` without `dynamic_sampling`).")
]
Index = Annotated[int | None, Query(ge=0, lt=INT64_END, description="Only samples of this group.")]
Row = Annotated[int | None, Query(ge=0, lt=INT64_END, description="Only groups of this row of the dataset, counted from 0.")]
Include = Annotated[
    list[Literal["tokens", "item"]] | None,
    Query(
        max_length=2,
        description="`tokens`: with token ids of prompt and response, and log-probabilities. `item`: with the dataset's row. Repeatable.",
    ),
]
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
    search: SampleSearch


class SampleQuery:
    """The query parameters that select samples."""

    def __init__(
        self, search: Annotated[SampleSearch, Depends()], step: Step = None, index: Index = None, row: Row = None, include: Include = None
    ) -> None:
        self.search = search
        self.step = step
        self.index = index
        self.row = row
        self.include = frozenset(include or ())

    def filter_for(self, schedule: ScheduleSpec) -> SampleFilter:
        """The filter for a run with this schedule. Raises the problem `invalid-request` for `step` where no index tells it."""
        if self.step is not None and not schedule.has_fixed_steps:
            how = "in a `free` schedule" if schedule.mode == "free" else "with `schedule.dynamic_sampling`"
            raise ProblemError(
                422, "invalid-request", f"{how} a group's index does not tell its step; leave `step` out and page with `after`"
            )
        return SampleFilter(_indexes(schedule, self.step, self.index), self.row, "tokens" in self.include, self.search)


@router.get("", summary="List samples of a run", responses=problems(404, 500))
async def list_samples(
    run_id: str, gateway: GatewayDep, query: Annotated[SampleQuery, Depends()], after: After = "", limit: Limit = 20
) -> Page[SampleResource]:
    """In the order in which their groups entered the experience log, archived groups included. Of long samples a page has fewer.

    A page of a search may have fewer too, and even none: it ends after 20,000 groups, and the next one goes on.
    """
    spec = (await gateway.runs.get(run_id)).record.spec
    rows = await gateway.rows.of(spec.data) if "item" in query.include else None
    found: list[Found] = []
    held, searched = 0, ""
    async with aclosing(_samples(gateway, run_id, spec, after, query.filter_for(spec.schedule))) as samples:
        async for cursor, sample in samples:
            if sample is None:
                searched = cursor
                break
            found.append((cursor, sample))
            held += held_bytes(sample) + (add_item(sample, rows) if rows is not None else 0)
            if len(found) > limit or (held > _PAGE_BYTES and len(found) > 1):
                limit = min(limit, len(found) - 1)
                break
    page = Page[SampleResource].of(found, limit)
    return page.model_copy(update={"has_more": True, "next_after": searched}) if searched and not page.has_more else page


def _indexes(schedule: ScheduleSpec, step: int | None, index: int | None) -> range | None:
    """Indexes of the selected groups; None for all."""
    of_step = range(step * schedule.groups_per_step, (step + 1) * schedule.groups_per_step) if step is not None else None
    if index is None:
        return of_step
    return range(index, index + 1) if of_step is None or index in of_step else range(0)


def _samples_of(
    stored: StoredEntry, entry: LogEntry | None, spec: RunSpec, selected: SampleFilter, above: int
) -> Iterator[tuple[int, SampleResource]]:
    """The selected samples of one entry with a number above `above`; in place of what cannot be read, one that says so."""
    unreadable = unreadable_sample(stored.stream_id, stored.index, admission_time(stored.stream_id))
    try:
        group = LoggedGroup(stored.stream_id, entry, spec) if entry is not None else None
    except _UNREADABLE as error:
        _log.warning("group_unreadable", entry=stored.stream_id, error=f"{type(error).__name__}: {error}")
        group = None
    if group is None:
        if selected.row is None and above < 0 and selected.search.selects_all:
            yield 0, unreadable
    elif selected.row is None or group.row == selected.row:
        for at, number in enumerate(group.numbers):
            if number > above and (selected.search.selects_all or selected.search.finds(group, at)):
                yield number, _sample(group, at, selected.with_tokens) or unreadable


def _sample(group: LoggedGroup, at: int, with_tokens: bool) -> SampleResource | None:
    try:
        return group.sample(at, with_tokens=with_tokens)
    except _UNREADABLE as error:
        _log.warning("sample_unreadable", index=group.entry.index, at=at, error=f"{type(error).__name__}: {error}")
        return None


async def _samples(
    gateway: Gateway, run_id: str, spec: RunSpec, after: str, selected: SampleFilter
) -> AsyncGenerator[tuple[str, SampleResource | None], None]:
    """Cursors and samples; None where a search has read enough for one page."""
    last_entry, _, last_sample = after.rpartition(".")
    # The group in which the previous page ended is read again, for its other samples.
    start = max(START, StreamId.parse(last_entry).before()) if last_entry else START
    left = len(selected.indexes) if selected.indexes is not None else -1
    if left == 0:
        return
    async with aclosing(read_experience(gateway.buffer, gateway.objects, run_id, start)) as entries:
        async for stored, entry in entries:
            if selected.indexes is not None and stored.index not in selected.indexes:
                continue
            above = int(last_sample) if stored.stream_id == last_entry else -1
            for number, sample in _samples_of(stored, entry, spec, selected, above):
                yield f"{stored.stream_id}.{number}", sample
            left -= 1
            if left == 0:
                return
            if left == -1 - _SEARCHED_GROUPS and not selected.search.selects_all:
                yield f"{stored.stream_id}.{_AFTER_ALL}", None
                return

"""A run's history as the gateway answers with it."""

from __future__ import annotations

import math
from array import array
from datetime import UTC, datetime
from typing import Any

from gradbus.resources.history import HistoryColumn, HistoryEvent, HistoryTable
from gradbus_gateway.history.buckets import Buckets, Curve
from gradbus_gateway.history.happenings import Happening
from gradbus_gateway.history.table import Selection
from gradbus_gateway.resources.runs import event_resource


def history_table(selection: Selection) -> HistoryTable:
    """A part of a table, downsampled. Reads a file and takes tenths of a second: run it in a thread."""
    found = selection.downsampled()
    is_exact = len(found) == sum(found.rows)
    return HistoryTable(
        width=1 if is_exact else selection.width,
        first=list(found.first),
        last=list(found.last),
        steps=list(found.rows),
        first_at=_times(found.first_at),
        last_at=_times(found.last_at),
        columns={name: _column(curve, is_exact) for name, curve in _known(found).items()},
    )


def history_event(happening: Happening) -> HistoryEvent:
    """An event with its step."""
    fields: dict[str, Any] = dict(event_resource(happening.event))
    return HistoryEvent(**fields, step=happening.step)


def _known(found: Buckets) -> dict[str, Curve]:
    """The columns that have a value, by their name."""
    return {name: found.curves[name] for name in sorted(found.curves) if any(found.curves[name].count)}


def _column(curve: Curve, is_exact: bool) -> HistoryColumn:
    last = _numbers(curve.newest)
    if is_exact:
        return HistoryColumn(last=last)
    mean = [total / count if count else None for total, count in zip(curve.total, curve.count, strict=True)]
    return HistoryColumn(last=last, min=_numbers(curve.low), max=_numbers(curve.high), mean=mean)


def _numbers(values: array[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _times(seconds: array[float]) -> list[datetime]:
    return [datetime.fromtimestamp(one, UTC) for one in seconds]

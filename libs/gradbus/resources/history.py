"""The metrics of a run as columns, for charts: few points for however many steps."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from gradbus.resources.runs import EventResource


class HistoryColumn(BaseModel):
    """One metric; an item for each bucket, null where no step of the bucket has a value."""

    last: list[float | None] = Field(description="The last value of the bucket.")
    min: list[float | None] = Field([], description="The smallest value. Empty if no bucket has two steps: it is `last` then.")
    max: list[float | None] = Field([], description="The largest value; empty as `min` is.")
    mean: list[float | None] = Field([], description="The mean of the values; empty as `min` is.")


class HistoryTable(BaseModel):
    """Metrics by step, or evaluations by version: the lists have an item for each bucket of consecutive steps that there are.

    A bucket is `width` steps wide and begins at a multiple of it; the first step and the newest 50 of the table are never merged.
    """

    width: int = Field(description="A power of two; 1: every bucket is one step, exactly as it was reported.")
    first: list[int] = Field(description="The first step, or version, of the bucket.")
    last: list[int] = Field(description="The last one.")
    steps: list[int] = Field(description="How many steps, or evaluations, the bucket has.")
    first_at: list[datetime] = Field(description="When the first step was reported.")
    last_at: list[datetime] = Field(description="When the last step was reported.")
    columns: dict[str, HistoryColumn] = Field(description="By the name of the metric; in an object `seconds/wait`. At most 512.")


class HistoryEvent(EventResource):
    """An event that is no metrics."""

    step: int | None = Field(description="The first step that was reported after it; null: none yet, or it is not known any more.")


class HistoryResource(BaseModel):
    """A run's history."""

    object: Literal["history"] = "history"
    run_id: str
    newest: int = Field(description="Id of the newest event that was read: later ones are `GET .../events?after=` this.")
    is_whole: bool = Field(description="False: the gateway still reads the run's events, and this is what it has read; ask again.")
    metrics: HistoryTable
    evaluations: HistoryTable
    events: list[HistoryEvent] = Field(
        description="The newest events that are no metrics, and the newest 1000 changes of the scorer; fewer where they are large."
    )

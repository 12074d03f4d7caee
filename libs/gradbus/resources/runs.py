"""A run, as a list and as its own address show it, and the events of its history."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from gradbus.control.runs import RunProgress, RunState
from gradbus.spec import Kind, RunSpec


class RunSummary(BaseModel):
    """A run in a list."""

    object: Literal["run"] = "run"
    id: str
    name: str
    kind: Kind | None = Field(description="What the run trains on, as in its spec; null for an unreadable run.")
    queue: str = Field("", description="The queue in which it waits for a trainer; empty for an unreadable run.")
    tags: list[str] = Field([], description="As users gave them, in the order of their characters.")
    state: RunState | Literal["unreadable"]
    desired: Literal["running", "paused", "cancelled"]
    reason: str = Field("", description="Why the run is in this state, and what to do about it.")
    waiting_for: str = Field("", description="What the run waits for, and which service has to deliver it.")
    steps: int = Field(description="Optimiser steps of the whole run.")
    deterministic: Literal["spec", "given records"] | None = Field(
        None, description="Of what the final weights are a function: the spec, or also the records of the episodes; null: of neither."
    )
    progress: RunProgress
    created_at: datetime | None
    updated_at: datetime | None = Field(
        None, description="When the run last said something new: its state and steps are told at once, its rates every two seconds."
    )
    finished_at: datetime | None = None


class RunResource(RunSummary):
    """A run with its note and its spec, every default and digest filled in."""

    note: str = Field("", description="What users wrote on the run.")
    spec: RunSpec


class EventResource(BaseModel):
    """One event of a run's history. Ids grow along the run, with gaps."""

    object: Literal["event"] = "event"
    id: int
    type: str
    level: str
    message: str
    data: dict[str, Any]
    created_at: datetime

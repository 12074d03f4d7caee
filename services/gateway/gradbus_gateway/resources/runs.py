"""A run, as a list and as its own address show it, and the events of its history."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from gradbus.bus import Event
from gradbus.control.runs import RunProgress, RunState
from gradbus.spec import Kind, RunSpec
from gradbus_gateway.resources.public_text import public_text
from gradbus_gateway.runs.store import Run, UnreadableRun


class RunSummary(BaseModel):
    """A run in a list."""

    object: Literal["run"] = "run"
    id: str
    name: str
    kind: Kind | None = Field(description="What the run trains on, as in its spec; null for an unreadable run.")
    queue: str = Field("", description="The queue in which it waits for a trainer; empty for an unreadable run.")
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

    @classmethod
    def of(cls, run: Run | UnreadableRun) -> Self:
        """The summary of `run`; an unreadable run has only its id and the reason."""
        if isinstance(run, UnreadableRun):
            unknown = {"name": "", "kind": None, "desired": "running", "steps": 0, "progress": RunProgress(), "created_at": None}
            return cls(id=run.run_id, state="unreadable", reason=run.reason, **unknown)
        return cls(**_fields(run))


class RunResource(RunSummary):
    """A run with its spec, every default and digest filled in."""

    spec: RunSpec

    @classmethod
    def full(cls, run: Run) -> Self:
        """`run` with its spec."""
        return cls(**_fields(run), spec=run.record.spec)


class EventResource(BaseModel):
    """One event of a run's history. Ids grow along the run, with gaps."""

    object: Literal["event"] = "event"
    id: int
    type: str
    level: str
    message: str
    data: dict[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, event: Event) -> Self:
        """The resource for a stored event."""
        return cls(
            id=event.sequence,
            type=event.type,
            level=event.level,
            message=public_text(event.message),
            data={name: public_text(value) if isinstance(value, str) else value for name, value in event.data.items()},
            created_at=_time(event.created_unix_ns),
        )


def _fields(run: Run) -> dict[str, Any]:
    status = run.status
    return {
        "id": run.record.run_id,
        "name": run.record.spec.name,
        "kind": run.record.spec.kind,
        "queue": run.record.spec.queue,
        "state": run.state,
        "desired": run.desired,
        "reason": public_text(status.reason) if status else "",
        "waiting_for": public_text(status.waiting_for) if status else "",
        "steps": run.record.spec.schedule.steps,
        "deterministic": _deterministic(run.record.spec, status.progress if status else RunProgress()),
        "progress": status.progress if status else RunProgress(),
        "created_at": _time(run.record.created_unix_ns),
        "updated_at": _time(status.updated_unix_ns) if status and status.updated_unix_ns else None,
        "finished_at": _time(status.finished_unix_ns) if status and status.finished_unix_ns else None,
    }


def _deterministic(spec: RunSpec, progress: RunProgress) -> Literal["spec", "given records"] | None:
    return None if not spec.is_deterministic or progress.determinism == "none" else progress.determinism


def _time(unix_ns: int) -> datetime:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC)

"""Runs and events, as the gateway's store and the bus have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from gradbus.bus import Event
from gradbus.control.runs import RunProgress
from gradbus.resources.runs import EventResource, RunResource, RunSummary
from gradbus.spec import RunSpec
from gradbus_gateway.resources.public_text import public_text
from gradbus_gateway.runs.store import Run, UnreadableRun


def run_summary(run: Run | UnreadableRun) -> RunSummary:
    """The summary of `run`; an unreadable run has only its id and the reason."""
    if isinstance(run, UnreadableRun):
        unknown = {"name": "", "kind": None, "desired": "running", "steps": 0, "progress": RunProgress(), "created_at": None}
        return RunSummary(id=run.run_id, state="unreadable", reason=run.reason, **unknown)
    return RunSummary(**_fields(run))


def run_resource(run: Run) -> RunResource:
    """`run` with its note and its spec."""
    return RunResource(**_fields(run), note=run.annotations.note, spec=run.record.spec)


def event_resource(event: Event) -> EventResource:
    """The resource for a stored event."""
    return EventResource(
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
        "tags": list(run.annotations.tags),
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

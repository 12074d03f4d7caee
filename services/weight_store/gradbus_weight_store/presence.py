"""Who is there."""

from __future__ import annotations

from pydantic import ValidationError

from gradbus.bus import View
from gradbus.control.runs import WorkerPresence


def live_workers(workers: View) -> list[WorkerPresence]:
    """Every worker whose heartbeat has not run out; one of another release is left out, and its conductor says so."""
    found = []
    for value in workers.entries.values():
        try:
            found.append(WorkerPresence.model_validate_json(value))
        except ValidationError:
            continue
    return found

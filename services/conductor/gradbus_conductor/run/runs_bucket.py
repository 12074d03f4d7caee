"""Reads the bucket `runs`: states, the queue, and the runs that a conductor drives. A run with an unreadable key blocks no other run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from gradbus.bus import View
from gradbus.control.runs import FINAL_STATES, DesiredState, RunState, RunStatus, read_run
from gradbus.errors import CorruptRecordError

_CACHED: Final = 16384  # read twice a second, written rarely
_RUNNING: Final = b'"running"'


def state_of(runs: View, run_id: str) -> RunState | None:
    """The state in the run's status; None if there is no status or it cannot be read."""
    value = runs.get(f"{run_id}.status")
    return _state(value) if value else None


def desired_state(runs: View, run_id: str) -> DesiredState:
    """The state that the user requests."""
    value = runs.get(f"{run_id}.desired")
    desired: DesiredState = json.loads(value) if value else "running"
    return desired


def unreadable_reason(runs: View, run_id: str) -> str:
    """Why the run's keys cannot be read, and what to do; empty if they can, or if the run is unknown."""
    spec = runs.get(f"{run_id}.spec")
    if spec is None:
        return ""
    return _unreadable_reason(run_id, spec, runs.get(f"{run_id}.desired"), runs.get(f"{run_id}.status"))


def unfinished_runs(runs: View) -> Iterator[str]:
    """Runs without a final state, oldest first: run ids sort by time of creation."""
    names = sorted(key.removesuffix(".spec") for key in runs.entries if key.endswith(".spec"))
    return (name for name in names if state_of(runs, name) not in FINAL_STATES)


def queued_runs(runs: View) -> Iterator[str]:
    """Readable runs that wait for a trainer or have no status yet, oldest first."""
    return (name for name in unfinished_runs(runs) if _is_queued(runs, name) and not unreadable_reason(runs, name))


def runs_to_drive(runs: View, max_queued: int) -> list[str]:
    """Unfinished runs that need a conductor now, oldest first; of the runs that only wait in the queue, the first `max_queued`.

    Each driven run has a lease that is renewed all the time: for a queue of a thousand, renewals would be most of the load.
    """
    needed, waiting = [], 0
    for name in unfinished_runs(runs):
        only_waits = _is_queued(runs, name) and runs.get(f"{name}.desired") in {None, _RUNNING}
        # Keys are parsed only near the head of the queue: parsing each run's keys as they change would be most of the work.
        if only_waits and waiting >= max_queued:
            continue
        waiting += only_waits and not unreadable_reason(runs, name)
        needed.append(name)
    return needed


def _is_queued(runs: View, run_id: str) -> bool:
    return state_of(runs, run_id) in {None, "queued"}


@lru_cache(_CACHED)
def _state(status: bytes) -> RunState | None:
    try:
        return RunStatus.model_validate_json(status).state
    except ValidationError:
        return None


@lru_cache(_CACHED)
def _unreadable_reason(run_id: str, spec: bytes, desired: bytes | None, status: bytes | None) -> str:
    try:
        read_run(run_id, spec, desired, status)
    except CorruptRecordError as error:
        return str(error)
    return ""

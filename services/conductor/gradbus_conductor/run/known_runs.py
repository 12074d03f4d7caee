"""What the bucket `runs` says of each run. One that cannot be read stands in nobody's way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from gradbus.bus import View
from gradbus.control.runs import FINAL_STATES, RunState, RunStatus, read_run
from gradbus.errors import CorruptRecordError

_CACHED = 16384  # looked at twice a second, written rarely
_RUNNING: Final = b'"running"'


def state_of(view: View, run_id: str) -> RunState | None:
    """What the run's conductor said last, if that can be read."""
    value = view.get(f"{run_id}.status")
    return _state(value) if value else None


def fault_of(view: View, run_id: str) -> str:
    """Why the run cannot be driven, and what to do; empty for a run whose keys can be read, or that is not known."""
    spec = view.get(f"{run_id}.spec")
    return _fault(run_id, spec, view.get(f"{run_id}.desired"), view.get(f"{run_id}.status")) if spec is not None else ""


def unfinished(view: View) -> Iterator[str]:
    """Runs that are not over, oldest first: run ids sort by time of creation."""
    names = sorted(key.removesuffix(".spec") for key in view.entries if key.endswith(".spec"))
    return (name for name in names if state_of(view, name) not in FINAL_STATES)


def queued(view: View) -> Iterator[str]:
    """Runs that wait for a trainer or were not looked at yet, oldest first."""
    return (name for name in unfinished(view) if _is_queued(view, name) and not fault_of(view, name))


def to_drive(view: View, most_queued: int) -> list[str]:
    """Unfinished runs that a conductor has work with, oldest first: of those that only wait for their turn, the first `most_queued`.

    A run that is driven has a lease, which is renewed all the time: of a thousand that wait, that would be most of what
    the whole system does.
    """
    due, waiting = [], 0
    for name in unfinished(view):
        patient = _is_queued(view, name) and view.get(f"{name}.desired") in {None, _RUNNING}
        # Whether a run can be read is looked into when its turn is near: to read each as it comes would be most of the work.
        if patient and waiting >= most_queued:
            continue
        waiting += patient and not fault_of(view, name)
        due.append(name)
    return due


def _is_queued(view: View, run_id: str) -> bool:
    return state_of(view, run_id) in {None, "queued"}


@lru_cache(_CACHED)
def _state(status: bytes) -> RunState | None:
    try:
        return RunStatus.model_validate_json(status).state
    except ValidationError:
        return None


@lru_cache(_CACHED)
def _fault(run_id: str, spec: bytes, desired: bytes | None, status: bytes | None) -> str:
    try:
        read_run(run_id, spec, desired, status)
    except CorruptRecordError as error:
        return str(error)
    return ""

"""Runs as a lineage shows them."""

from __future__ import annotations

from gradbus.resources.lineage import RelatedRun, Role
from gradbus.spec import AncestorSpec
from gradbus_gateway.runs.store import Run, UnreadableRun


def ancestor(role: Role, spec: AncestorSpec, run: Run | UnreadableRun | None) -> RelatedRun:
    """An ancestor; `run` is None if it has been deleted."""
    state = "deleted" if run is None else "unreadable" if isinstance(run, UnreadableRun) else run.state
    return RelatedRun(id=spec.run, name=spec.name, state=state, role=role, version=spec.version, digest=spec.digest)


def child(role: Role, run: Run, parent: AncestorSpec) -> RelatedRun:
    """A run that took the version `parent`."""
    return RelatedRun(id=run.run_id, name=run.record.spec.name, state=run.state, role=role, version=parent.version, digest=parent.digest)

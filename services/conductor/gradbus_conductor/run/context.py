"""What the parts of one run share: its record, its connections, its lease and its status."""

from __future__ import annotations

from dataclasses import dataclass

from gradbus.bus import Bucket, Lease
from gradbus.control.runs import DesiredState, RunRecord, RunState
from gradbus.errors import FencedError
from gradbus_conductor.clients import Clients
from gradbus_conductor.run.status import RunStatusWriter
from gradbus_conductor.runs.index import RunIndex
from gradbus_conductor.workers import WorkerPool


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends; or `paused` or `queued` when it leaves its trainer to another run."""

    state: RunState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunContext:
    """One run under one lease."""

    clients: Clients
    record: RunRecord
    runs_bucket: Bucket
    runs: RunIndex
    """All runs, as last seen."""
    pool: WorkerPool
    lease: Lease
    status: RunStatusWriter

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.record.run_id

    @property
    def desired(self) -> DesiredState:
        """The state that the user requests."""
        return self.runs.desired(self.run_id)

    def check_lease(self) -> None:
        """Raises FencedError once the lease is lost."""
        if self.lease.lost.is_set():
            raise FencedError(f"the lease of {self.run_id} is lost; another conductor continues the run")

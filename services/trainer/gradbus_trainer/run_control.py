"""The control of one run: its lease, which only one trainer holds, and the state that the user requests."""

from __future__ import annotations

import asyncio

from gradbus.bus import Buckets, Bus, Lease
from gradbus.errors import FencedError
from gradbus.process import WorkerHeartbeat
from gradbus.telemetry import get_logger

_log = get_logger(__name__)
_LEASE_SECONDS = 0.5
_PAUSED_SECONDS = 0.1


class RunControl:
    """Lease and requested state of a run, for as long as this trainer serves it."""

    def __init__(self, run_id: str, lease: Lease, heartbeat: WorkerHeartbeat) -> None:
        self._run_id = run_id
        self._lease = lease
        self._heartbeat = heartbeat

    @classmethod
    async def acquire(cls, bus: Bus, run_id: str, heartbeat: WorkerHeartbeat) -> RunControl:
        """Waits for the run's lease, which begins a new term."""
        leases = await bus.bucket(Buckets.LEASES)
        while (lease := await Lease.acquire(leases, f"trainer.{run_id}", heartbeat.presence.worker)) is None:
            _log.info("waiting_for_lease", run_id=run_id)
            await asyncio.sleep(_LEASE_SECONDS)
        return cls(run_id, lease, heartbeat)

    @property
    def term(self) -> int:
        """Fences older trainers of the run."""
        return self._lease.term

    async def wait_while_paused(self) -> None:
        """Returns once the run is not paused. Raises FencedError when the lease is lost."""
        while True:
            if self._lease.lost.is_set():
                raise FencedError(f"the trainer's lease of {self._run_id} is lost; it is resumed from the newest checkpoint")
            if self._heartbeat.desired(self._run_id) != "paused":
                return
            await asyncio.sleep(_PAUSED_SECONDS)

    async def release(self) -> None:
        """Lets the next trainer have the run at once."""
        await self._lease.release()

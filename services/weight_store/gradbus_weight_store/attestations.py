"""Who holds what: each worker's own checksum, and alarms for those that hold the wrong weights or stay behind (R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from gradbus.bus import Bus, EventLog, View
from gradbus.control.runs import WorkerPresence
from gradbus.telemetry import weights_trouble
from gradbus.v1.weights_pb2 import Attestation
from gradbus_weight_store.presence import live_workers

_CHECK_SECONDS = 1.0


@dataclass(slots=True)
class _Seen:
    """When a worker was first seen at its version, and whether it was reported there."""

    version: int
    run_id: str
    since: float
    reported: bool = False


@dataclass(frozen=True, slots=True)
class LagLimit:
    """A worker is left behind when it is `versions` behind the head, has work, and has not moved for `seconds`."""

    versions: int
    seconds: float


@dataclass(slots=True)
class Attestations:
    """The newest attestation of each worker, from its calls and from its heartbeats, which outlive a restart of this process."""

    bus: Bus
    workers: View
    patience: LagLimit
    _newest: dict[tuple[str, str], Attestation] = field(default_factory=dict)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _events: dict[str, EventLog] = field(default_factory=dict)

    def note(self, attestation: Attestation, expected: str) -> bool:
        """Remembers it; False, and an alarm, if its digest is not the `expected` one."""
        self._newest[attestation.run_id, attestation.worker] = attestation
        if attestation.digest == expected:
            return True
        weights_trouble("digest_differs")
        self._alarm(
            attestation.run_id,
            f"{attestation.worker} holds other weights than version {attestation.step} has; it loads them again",
            {"worker": attestation.worker, "version": attestation.step, "expected": expected, "digest": attestation.digest},
        )
        return False

    def of(self, run_id: str) -> list[Attestation]:
        """The newest of each live worker that serves the run, in order of names."""
        live = {worker.worker: worker for worker in live_workers(self.workers) if worker.run_id == run_id and worker.role == "rollout"}
        self._newest = {key: one for key, one in self._newest.items() if key[0] != run_id or key[1] in live}
        return [self._of(live[name]) for name in sorted(live) if live[name].version >= 0 or (run_id, name) in self._newest]

    async def watch(self, head_step: Callable[[str], int]) -> None:
        """For ever: an alarm, once, for each worker that stays behind the head of its run."""
        while True:
            self.check(head_step, asyncio.get_running_loop().time())
            await asyncio.sleep(_CHECK_SECONDS)

    def check(self, head_step: Callable[[str], int], now: float) -> None:
        """One look at `now`, in seconds of a clock that never goes back."""
        live = {
            worker.worker: worker
            for worker in live_workers(self.workers)
            if worker.role == "rollout" and worker.run_id and worker.version >= 0
        }
        self._seen = {name: seen for name, seen in self._seen.items() if name in live}
        for name, worker in live.items():
            seen = self._seen.get(name)
            if seen is None or (seen.version, seen.run_id) != (worker.version, worker.run_id):
                seen = self._seen[name] = _Seen(worker.version, worker.run_id, now)
            elif not (worker.claims or worker.evaluation_claims):
                seen.since = now  # nobody asks it for a newer one
            behind = head_step(worker.run_id) - worker.version
            if not seen.reported and behind >= self.patience.versions and now - seen.since >= self.patience.seconds:
                seen.reported = True
                weights_trouble("behind")
                message = f"{name} stays at version {worker.version}, {behind} behind; see its log, or stop it so that others take its work"
                self._alarm(worker.run_id, message, {"worker": name, "version": worker.version, "behind": behind})

    def _of(self, worker: WorkerPresence) -> Attestation:
        called = self._newest.get((worker.run_id, worker.worker))
        if called and called.step >= worker.version:
            return called
        return Attestation(run_id=worker.run_id, worker=worker.worker, step=worker.version, digest=worker.digest)

    def _alarm(self, run_id: str, message: str, data: dict[str, object]) -> None:
        events = self._events.setdefault(run_id, EventLog(self.bus, run_id))
        events.emit("alarm", message, data, level="warning")

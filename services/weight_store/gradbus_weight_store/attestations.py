"""Attestations: each worker's own checksum of its weights, and alarms for workers with wrong or old weights (R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from gradbus.bus import Bus, EventLog
from gradbus.control.live_workers import LiveWorkers
from gradbus.control.runs import WorkerPresence
from gradbus.telemetry import weights_trouble
from gradbus.v1.weights_pb2 import Attestation

_CHECK_SECONDS = 1.0


@dataclass(slots=True)
class _Progress:
    """Since when a worker has been at its version, and whether an alarm was raised for it there."""

    version: int
    run_id: str
    since: float
    reported: bool = False


@dataclass(frozen=True, slots=True)
class LagLimit:
    """A worker lags when it is `versions` behind the head, has work, and has not moved for `seconds`."""

    versions: int
    seconds: float


@dataclass(slots=True)
class Attestations:
    """The newest attestation of each worker, from its calls and from its heartbeats, which outlive a restart of this process."""

    bus: Bus
    workers: LiveWorkers
    limit: LagLimit
    _newest: dict[str, dict[str, Attestation]] = field(default_factory=dict)
    """By run and worker."""
    _progress: dict[str, _Progress] = field(default_factory=dict)
    _events: dict[str, EventLog] = field(default_factory=dict)

    def record(self, attestation: Attestation, expected: str) -> bool:
        """Remembers the attestation; False, and an alarm, if its digest is not the `expected` one."""
        self._newest.setdefault(attestation.run_id, {})[attestation.worker] = attestation
        if attestation.digest == expected:
            return True
        weights_trouble("digest_differs")
        self._alarm(
            attestation.run_id,
            f"{attestation.worker} holds weights that are not version {attestation.step}; it loads them again",
            {"worker": attestation.worker, "version": attestation.step, "expected": expected, "digest": attestation.digest},
        )
        return False

    def of(self, run_id: str) -> list[Attestation]:
        """The newest attestation of each live worker that serves the run, in order of worker names."""
        live = {worker.worker: worker for worker in self.workers.of_run(run_id, "rollout")}
        newest = {name: one for name, one in self._newest.pop(run_id, {}).items() if name in live}
        if newest:
            self._newest[run_id] = newest
        return [self._of(live[name]) for name in sorted(live) if live[name].version >= 0 or name in newest]

    async def watch(self, head_step: Callable[[str], int]) -> None:
        """Runs until cancelled; raises one alarm for each worker that stays behind the head of its run."""
        while True:
            self.check(head_step, asyncio.get_running_loop().time())
            await asyncio.sleep(_CHECK_SECONDS)

    def check(self, head_step: Callable[[str], int], now: float) -> None:
        """Checks every worker once; `now` is in seconds of a monotonic clock."""
        live = {worker.worker: worker for worker in self.workers.of_role("rollout") if worker.run_id and worker.version >= 0}
        self._progress = {name: progress for name, progress in self._progress.items() if name in live}
        for name, worker in live.items():
            progress = self._progress.get(name)
            if progress is None or (progress.version, progress.run_id) != (worker.version, worker.run_id):
                progress = self._progress[name] = _Progress(worker.version, worker.run_id, now)
            elif not (worker.claims or worker.evaluation_claims):
                progress.since = now  # without work it needs no newer version
            behind = head_step(worker.run_id) - worker.version
            if not progress.reported and behind >= self.limit.versions and now - progress.since >= self.limit.seconds:
                progress.reported = True
                weights_trouble("lagging")
                message = f"{name} stays at version {worker.version}, {behind} behind; see its log, or stop it to free its work"
                self._alarm(worker.run_id, message, {"worker": name, "version": worker.version, "behind": behind})

    def _of(self, worker: WorkerPresence) -> Attestation:
        attested = self._newest.get(worker.run_id, {}).get(worker.worker)
        if attested and attested.step >= worker.version:
            return attested
        return Attestation(run_id=worker.run_id, worker=worker.worker, step=worker.version, digest=worker.digest)

    def _alarm(self, run_id: str, message: str, data: dict[str, object]) -> None:
        events = self._events.setdefault(run_id, EventLog(self.bus, run_id))
        events.emit("alarm", message, data, level="warning")

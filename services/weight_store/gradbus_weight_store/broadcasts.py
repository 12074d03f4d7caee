"""The rendezvous of a weight broadcast: which workers take part.

In memory alone, at most one broadcast a run. A broadcast that a restart forgets ends without members: the version is in object
storage too.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field

from gradbus.bus import Bus, subjects
from gradbus.bus.subjects import WORKER_TTL_SECONDS
from gradbus.control.live_workers import LiveWorkers
from gradbus.telemetry import get_logger
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastMembership
from gradbus.v1.weight_store_service_pb2 import JoinBroadcastRequest, OpenBroadcastRequest

_log = get_logger(__name__)
_POLL_SECONDS = 0.2
_MAX_JOIN_SECONDS = 60.0
_ABSENCE_SECONDS = WORKER_TTL_SECONDS
_NO_MEMBERS = BroadcastMembership()


@dataclass(slots=True)
class _OpenBroadcast:
    """A broadcast that workers may join. Once it is closed, `members` is the answer to trainer and workers."""

    broadcast: Broadcast
    address: str
    previous_groups: dict[str, str] = field(default_factory=dict)
    """Each worker that joined, with the process group that it still has from before (empty: none)."""
    missing: set[str] = field(default_factory=set)
    """Of the workers that were expected at the last look, those that have not joined."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nobody is missing any more. To look at all workers whenever one joins would take the square of their number."""
    members: asyncio.Future[BroadcastMembership] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def close(self, members: BroadcastMembership) -> None:
        if not self.members.done():
            self.members.set_result(members)
        self.complete.set()

    def join(self, worker: str, previous_group: str) -> None:
        """A worker takes part."""
        self.previous_groups[worker] = previous_group
        self.missing.discard(worker)
        if not self.missing:
            self.complete.set()


@dataclass(slots=True)
class Broadcasts:
    """The open broadcasts, one a run."""

    bus: Bus
    workers: LiveWorkers
    _opened: dict[str, _OpenBroadcast] = field(default_factory=dict)
    _groups: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """Run to the process group of its newest broadcast, and that group's workers."""
    _absent_since: dict[str, float] = field(default_factory=dict)
    """Worker to the time at which it did not join. It is not waited for again until its presence runs out or it joins."""

    async def open(self, request: OpenBroadcastRequest) -> BroadcastMembership:
        """Announces a broadcast and waits for the workers. A newer broadcast of the run ends it without members."""
        broadcast = Broadcast()
        broadcast.CopyFrom(request.broadcast)
        broadcast.broadcast_id = secrets.token_hex(8)
        run_id = broadcast.run_id
        if older := self._opened.pop(run_id, None):
            older.close(_NO_MEMBERS)
        if not self._expected(run_id):
            return _NO_MEMBERS
        opened = self._opened[run_id] = _OpenBroadcast(broadcast, request.address)
        try:
            await self.bus.publish(subjects.broadcasts(run_id), broadcast.SerializeToString())
            await self._wait_for_workers(opened, min(broadcast.config.join_seconds, _MAX_JOIN_SECONDS))
            if not opened.members.done():
                opened.close(self._membership(opened, request.previous_group))
        finally:
            opened.close(_NO_MEMBERS)  # does nothing unless the trainer is gone
            if self._opened.get(run_id) is opened:
                del self._opened[run_id]
        return opened.members.result()

    async def join(self, request: JoinBroadcastRequest) -> BroadcastMembership:
        """Waits until the membership is closed. A worker that comes late, or names another broadcast, is no member."""
        opened = self._opened.get(request.run_id)
        if opened is None or opened.broadcast.broadcast_id != request.broadcast_id or opened.members.done():
            return _NO_MEMBERS
        opened.join(request.worker, request.previous_group)
        self._absent_since.pop(request.worker, None)
        try:
            return await asyncio.shield(opened.members)
        except asyncio.CancelledError:
            if not opened.members.done():
                opened.previous_groups.pop(request.worker, None)  # the worker ended its call
            raise

    async def _wait_for_workers(self, opened: _OpenBroadcast, seconds: float) -> None:
        """Returns when every expected worker has joined, when the time is over, or when a newer broadcast has come."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while not opened.members.done() and (left := deadline - clock()) > 0:
            opened.missing = self._expected(opened.broadcast.run_id) - opened.previous_groups.keys()
            if not opened.missing:
                return
            opened.complete.clear()
            with contextlib.suppress(TimeoutError):  # look at the presence of workers again
                async with asyncio.timeout(min(left, _POLL_SECONDS)):
                    await opened.complete.wait()

    def _membership(self, opened: _OpenBroadcast, trainer_group: str) -> BroadcastMembership:
        """Reuses the newest process group if the workers are the same and each member still has it."""
        run_id, workers = opened.broadcast.run_id, sorted(opened.previous_groups)
        known_groups = {trainer_group, *opened.previous_groups.values()}
        group, members = self._groups.get(run_id, ("", []))
        is_new = known_groups != {group} or members != workers
        if is_new:
            group = secrets.token_hex(16)
        self._groups[run_id] = group, workers
        absent = sorted(self._expected(run_id) - opened.previous_groups.keys())
        self._absent_since |= dict.fromkeys(absent, asyncio.get_running_loop().time())
        step = opened.broadcast.step
        _log.info("broadcast_members", run_id=run_id, step=step, workers=workers, absent=absent, new_group=is_new)
        if not workers:
            return BroadcastMembership(absent=absent)
        return BroadcastMembership(group=group, workers=workers, absent=absent, address=opened.address)

    def _expected(self, run_id: str) -> set[str]:
        """Live workers of the run that receive broadcasts, without those that recently failed to join one."""
        since = asyncio.get_running_loop().time() - _ABSENCE_SECONDS
        self._absent_since = {worker: absent for worker, absent in self._absent_since.items() if absent > since}
        able = {worker.worker for worker in self.workers.of_run(run_id, "rollout") if worker.receives}
        return able - self._absent_since.keys()

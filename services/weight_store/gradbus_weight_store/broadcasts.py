"""Who takes part in the broadcast of a version.

In memory alone, one broadcast a run: what a restart forgets goes through object storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field

from gradbus.bus import Bus, View, subjects
from gradbus.bus.subjects import WORKER_TTL_SECONDS
from gradbus.telemetry import get_logger
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastMembership
from gradbus.v1.weight_store_service_pb2 import JoinBroadcastRequest, OpenBroadcastRequest
from gradbus_weight_store.presence import live_workers

_log = get_logger(__name__)
_LOOK_SECONDS = 0.2
_LONGEST_JOIN_SECONDS = 60.0
_MISSED_SECONDS = WORKER_TTL_SECONDS
_NOBODY = BroadcastMembership()


@dataclass(slots=True)
class _Opened:
    """A broadcast whose membership is open; `members` is answered to all who wait once it is closed."""

    broadcast: Broadcast
    address: str
    held: dict[str, str] = field(default_factory=dict)
    """Worker to the group that it still holds."""
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    members: asyncio.Future[BroadcastMembership] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def close(self, members: BroadcastMembership) -> None:
        if not self.members.done():
            self.members.set_result(members)
        self.joined.set()


@dataclass(slots=True)
class Broadcasts:
    """The rendezvous of trainer and workers."""

    bus: Bus
    workers: View
    _opened: dict[str, _Opened] = field(default_factory=dict)
    _groups: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """Run to the group of its newest broadcast and that group's workers."""
    _missed: dict[str, float] = field(default_factory=dict)
    """Worker to when it was waited for in vain: one that hangs holds up one version, until its presence runs out."""

    async def open(self, request: OpenBroadcastRequest) -> BroadcastMembership:
        """Announces a broadcast, and waits for the workers; a newer one of the run ends it without members."""
        broadcast = Broadcast()
        broadcast.CopyFrom(request.broadcast)
        broadcast.broadcast_id = secrets.token_hex(8)
        run_id = broadcast.run_id
        if older := self._opened.pop(run_id, None):
            older.close(_NOBODY)
        if not self._awaited(run_id):
            return _NOBODY
        opened = self._opened[run_id] = _Opened(broadcast, request.address)
        try:
            await self.bus.publish(subjects.broadcasts(run_id), broadcast.SerializeToString())
            await self._gather(opened, min(broadcast.config.join_seconds, _LONGEST_JOIN_SECONDS))
            if not opened.members.done():
                opened.close(self._membership(opened, request.held_group))
        finally:
            opened.close(_NOBODY)  # nothing, unless the trainer is gone
            if self._opened.get(run_id) is opened:
                del self._opened[run_id]
        return opened.members.result()

    async def join(self, request: JoinBroadcastRequest) -> BroadcastMembership:
        """Waits until the membership is closed. Whoever comes late, or to another broadcast, is no member."""
        opened = self._opened.get(request.run_id)
        if opened is None or opened.broadcast.broadcast_id != request.broadcast_id or opened.members.done():
            return _NOBODY
        opened.held[request.worker] = request.held_group
        self._missed.pop(request.worker, None)
        opened.joined.set()
        try:
            return await asyncio.shield(opened.members)
        except asyncio.CancelledError:
            if not opened.members.done():
                opened.held.pop(request.worker, None)  # it hung up
            raise

    async def _gather(self, opened: _Opened, seconds: float) -> None:
        """Returns when all who live and can take part have joined, the time is over, or a newer broadcast came."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while not opened.members.done() and (left := deadline - clock()) > 0:
            if not self._awaited(opened.broadcast.run_id) - opened.held.keys():
                return
            opened.joined.clear()
            with contextlib.suppress(TimeoutError):  # presence may have changed meanwhile
                await asyncio.wait_for(opened.joined.wait(), min(left, _LOOK_SECONDS))

    def _membership(self, opened: _Opened, held_by_trainer: str) -> BroadcastMembership:
        """Reuses the newest group if it has the same workers and each member still holds it."""
        run_id, workers = opened.broadcast.run_id, sorted(opened.held)
        held = {held_by_trainer, *opened.held.values()}
        name, known = self._groups.get(run_id, ("", []))
        if held != {name} or known != workers:
            name = secrets.token_hex(16)
        self._groups[run_id] = name, workers
        absent = sorted(self._awaited(run_id) - opened.held.keys())
        self._missed |= dict.fromkeys(absent, asyncio.get_running_loop().time())
        step = opened.broadcast.step
        _log.info("broadcast_members", run_id=run_id, step=step, workers=workers, absent=absent, new_group=held != {name})
        return (
            BroadcastMembership(group=name, workers=workers, absent=absent, address=opened.address)
            if workers
            else BroadcastMembership(absent=absent)
        )

    def _awaited(self, run_id: str) -> set[str]:
        """Live workers of the run that can take part, without those that were waited for in vain a moment ago."""
        since = asyncio.get_running_loop().time() - _MISSED_SECONDS
        self._missed = {worker: missed for worker, missed in self._missed.items() if missed > since}
        able = {worker.worker for worker in live_workers(self.workers) if worker.run_id == run_id and worker.receives}
        return able - self._missed.keys()

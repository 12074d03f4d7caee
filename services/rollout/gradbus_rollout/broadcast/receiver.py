"""The worker's end of a broadcast: fills the cache of shards before, or while, a version is published.

What does not come, comes late or comes damaged is simply not in the cache: the load takes it from object storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpc.aio import AioRpcError

from gradbus.aio.tasks import background
from gradbus.aio.threads import in_own_thread
from gradbus.bus import subjects
from gradbus.errors import BroadcastError, CorruptRecordError, first_line
from gradbus.process import WorkerClients
from gradbus.telemetry import get_logger
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastMembership
from gradbus.v1.weight_store_service_pb2 import JoinBroadcastRequest
from gradbus_rollout.broadcast.process import BroadcastProcess, MemberConfig

_log = get_logger(__name__)
_CALL_SECONDS = 2.0
_START_SECONDS = 120.0
_FAULTS = (AioRpcError, CorruptRecordError, BroadcastError, OSError, TimeoutError)


class BroadcastReceiver:
    """One run's broadcasts, one at a time; of those announced meanwhile the newest counts."""

    def __init__(self, clients: WorkerClients, run_id: str, seat: MemberConfig) -> None:
        self._clients = clients
        self._run_id = run_id
        self._seat = seat
        self._newest: Broadcast | None = None
        self._news = asyncio.Event()

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Takes part inside the block, once it is ready; lets go of everything after it."""
        async with self._clients.bus.subscribed(subjects.broadcasts(self._run_id), self._announced), background(self._serve(), "receiver"):
            yield

    async def _announced(self, payload: bytes) -> None:
        self._newest = Broadcast.FromString(payload)
        self._news.set()

    async def _serve(self) -> None:
        """With a new member after each failure, for who was left behind in a group is of no use any more."""
        while True:
            try:
                member = BroadcastProcess(self._seat)
            except BroadcastError as error:
                return self._takes_no_part(error)
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await in_own_thread(member.wait_until_ready, "broadcast-start")
                self._tell(receives=True)
                await self._take_parts(member)
            except (BroadcastError, TimeoutError) as error:
                return self._takes_no_part(error)
            finally:
                self._tell(receives=False)
                member.abort()

    def _takes_no_part(self, error: Exception) -> None:
        _log.warning("takes_no_part_in_broadcasts", run_id=self._run_id, python=self._seat.python, error=first_line(error))

    def _tell(self, receives: bool) -> None:
        self._clients.heartbeat.presence.receives = receives
        self._clients.heartbeat.publish_now()

    async def _take_parts(self, member: BroadcastProcess) -> None:
        """Returns when one failed."""
        while True:
            await self._news.wait()
            self._news.clear()
            broadcast, self._newest = self._newest, None
            if broadcast is None:
                continue
            try:
                await self._take_part(broadcast, member)
            except _FAULTS as error:
                reason = error.details() if isinstance(error, AioRpcError) else first_line(error)
                _log.warning("broadcast_missed", run_id=self._run_id, step=broadcast.step, error=f"{type(error).__name__}: {reason}")
                return

    async def _take_part(self, broadcast: Broadcast, member: BroadcastProcess) -> None:
        config = broadcast.config
        members = await self._join(broadcast, member.held_group)
        if members is None:
            return
        async with asyncio.timeout(config.stall_seconds):
            await in_own_thread(lambda: member.connect(members, config), "broadcast-connect")
        async with asyncio.timeout(config.seconds):
            await in_own_thread(lambda: member.receive(broadcast, members), "broadcast-receive")

    async def _join(self, broadcast: Broadcast, held_group: str) -> BroadcastMembership | None:
        """The members, if this worker is one."""
        name = self._seat.worker
        request = JoinBroadcastRequest(run_id=self._run_id, broadcast_id=broadcast.broadcast_id, worker=name, held_group=held_group)
        seconds = _CALL_SECONDS + broadcast.config.join_seconds
        members = (await self._clients.weight_store.JoinBroadcast(request, timeout=seconds)).membership
        if name in members.workers:
            return members
        _log.info("broadcast_missed", run_id=self._run_id, step=broadcast.step, error="its membership was closed")
        return None

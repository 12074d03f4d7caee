"""The worker's side of weight broadcasts: fills the cache of shards before, or while, a version is published.

A shard that is missing, late or damaged is not in the cache, so the load fetches it from object storage.
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
    """Receives one run's broadcasts, one at a time. Of the broadcasts announced meanwhile, only the newest is received."""

    def __init__(self, clients: WorkerClients, run_id: str, member: MemberConfig) -> None:
        self._clients = clients
        self._run_id = run_id
        self._member = member
        self._newest: Broadcast | None = None
        self._announcement = asyncio.Event()

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Receives broadcasts inside the block, once the process is ready."""
        async with self._clients.bus.subscribed(subjects.broadcasts(self._run_id), self._announced), background(self._serve(), "receiver"):
            yield

    async def _announced(self, payload: bytes) -> None:
        self._newest = Broadcast.FromString(payload)
        self._announcement.set()

    async def _serve(self) -> None:
        """Runs a new process after each missed broadcast: the group of the old one has gone on without it."""
        while True:
            try:
                process = BroadcastProcess(self._member)
            except BroadcastError as error:
                return self._give_up(error)
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await in_own_thread(process.wait_until_ready, "broadcast-start")
                self._publish(receives=True)
                await self._receive_all(process)
            except (BroadcastError, TimeoutError) as error:
                return self._give_up(error)
            finally:
                self._publish(receives=False)
                process.abort()

    def _give_up(self, error: Exception) -> None:
        _log.warning("broadcasts_disabled", run_id=self._run_id, python=self._member.python, error=first_line(error))

    def _publish(self, receives: bool) -> None:
        self._clients.heartbeat.presence.receives = receives
        self._clients.heartbeat.publish_now()

    async def _receive_all(self, process: BroadcastProcess) -> None:
        """Receives broadcast after broadcast; returns when one was missed. Raises BroadcastError if this worker can receive none."""
        while True:
            await self._announcement.wait()
            self._announcement.clear()
            broadcast, self._newest = self._newest, None
            if broadcast is None:
                continue
            self._member.device_for(broadcast.config.backend)  # raises before anybody waits for this worker
            try:
                await self._receive(broadcast, process)
            except _FAULTS as error:
                reason = error.details() if isinstance(error, AioRpcError) else first_line(error)
                _log.warning("broadcast_missed", run_id=self._run_id, step=broadcast.step, error=f"{type(error).__name__}: {reason}")
                return

    async def _receive(self, broadcast: Broadcast, process: BroadcastProcess) -> None:
        config = broadcast.config
        members = await self._join(broadcast, process.group)
        if members is None:
            return
        async with asyncio.timeout(config.stall_seconds):
            await in_own_thread(lambda: process.connect(members, config), "broadcast-connect")
        async with asyncio.timeout(config.seconds):
            await in_own_thread(lambda: process.receive(broadcast, members), "broadcast-receive")

    async def _join(self, broadcast: Broadcast, group: str) -> BroadcastMembership | None:
        """The members of the group; None if it was closed before this worker joined."""
        name = self._member.worker
        request = JoinBroadcastRequest(run_id=self._run_id, broadcast_id=broadcast.broadcast_id, worker=name, previous_group=group)
        seconds = _CALL_SECONDS + broadcast.config.join_seconds
        members = (await self._clients.weight_store.JoinBroadcast(request, timeout=seconds)).membership
        if name in members.workers:
            return members
        _log.info("broadcast_missed", run_id=self._run_id, step=broadcast.step, error="the group was closed before this worker joined")
        return None

"""The worker's end of a broadcast: fills the cache of shards before, or while, a version is published.

What does not come, comes late or comes damaged is simply not in the cache: the load takes it from object storage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpc.aio import AioRpcError

from gradbus.background import background
from gradbus.bus import subjects
from gradbus.errors import CorruptRecordError, TransferError, first_line
from gradbus.process import WorkerWires
from gradbus.telemetry import get_logger
from gradbus.threads import in_own_thread
from gradbus.v1.transfer_pb2 import Membership, Transfer
from gradbus.v1.weight_store_service_pb2 import JoinTransferRequest
from gradbus_rollout.member import Member, Seat

_log = get_logger(__name__)
_CALL_SECONDS = 2.0
_START_SECONDS = 120.0
_FAULTS = (AioRpcError, CorruptRecordError, TransferError, OSError, TimeoutError)


class Receiver:
    """One run's broadcasts, one at a time; of those announced meanwhile the newest counts."""

    def __init__(self, wires: WorkerWires, run_id: str, seat: Seat) -> None:
        self._wires = wires
        self._run_id = run_id
        self._seat = seat
        self._newest: Transfer | None = None
        self._news = asyncio.Event()

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Takes part inside the block, once it is ready; lets go of everything after it."""
        async with self._wires.bus.subscribed(subjects.transfers(self._run_id), self._announced), background(self._serve(), "receiver"):
            yield

    async def _announced(self, payload: bytes) -> None:
        self._newest = Transfer.FromString(payload)
        self._news.set()

    async def _serve(self) -> None:
        """With a new member after each failure, for who was left behind in a group is of no use any more."""
        while True:
            try:
                member = Member(self._seat)
            except TransferError as error:
                return self._takes_no_part(error)
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await in_own_thread(member.wait_until_ready, "transfer-start")
                self._tell(receives=True)
                await self._take_parts(member)
            except (TransferError, TimeoutError) as error:
                return self._takes_no_part(error)
            finally:
                self._tell(receives=False)
                member.abort()

    def _takes_no_part(self, error: Exception) -> None:
        _log.warning("takes_no_part_in_broadcasts", run_id=self._run_id, python=self._seat.python, error=first_line(error))

    def _tell(self, receives: bool) -> None:
        self._wires.station.presence.receives = receives
        self._wires.station.touch()

    async def _take_parts(self, member: Member) -> None:
        """Returns when one failed."""
        while True:
            await self._news.wait()
            self._news.clear()
            transfer, self._newest = self._newest, None
            if transfer is None:
                continue
            try:
                await self._take_part(transfer, member)
            except _FAULTS as error:
                reason = error.details() if isinstance(error, AioRpcError) else first_line(error)
                _log.warning("transfer_missed", run_id=self._run_id, step=transfer.step, error=f"{type(error).__name__}: {reason}")
                return

    async def _take_part(self, transfer: Transfer, member: Member) -> None:
        terms = transfer.terms
        members = await self._join(transfer, member.held_group)
        if members is None:
            return
        async with asyncio.timeout(terms.stall_seconds):
            await in_own_thread(lambda: member.connect(members, terms), "transfer-connect")
        async with asyncio.timeout(terms.seconds):
            await in_own_thread(lambda: member.receive(transfer, members), "transfer-receive")

    async def _join(self, transfer: Transfer, held_group: str) -> Membership | None:
        """The members, if this worker is one."""
        name = self._seat.worker
        request = JoinTransferRequest(run_id=self._run_id, transfer_id=transfer.transfer_id, worker=name, held_group=held_group)
        seconds = _CALL_SECONDS + transfer.terms.join_seconds
        members = (await self._wires.weight_store.JoinTransfer(request, timeout=seconds)).membership
        if name in members.workers:
            return members
        _log.info("transfer_missed", run_id=self._run_id, step=transfer.step, error="its membership was closed")
        return None

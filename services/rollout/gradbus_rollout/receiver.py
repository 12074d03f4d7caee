"""The worker's end of a broadcast: fills the cache of shards before, or while, a version is published.

What does not come, comes late or comes damaged is simply not in the cache: the load takes it from object storage.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from grpc.aio import AioRpcError

from gradbus.background import background
from gradbus.bus import subjects
from gradbus.errors import CorruptRecordError, first_line
from gradbus.process import WorkerWires
from gradbus.telemetry import get_logger
from gradbus.threads import in_own_thread
from gradbus.transfer_settings import TransferSettings
from gradbus.v1.transfer_pb2 import Membership, Transfer
from gradbus.v1.weight_store_service_pb2 import JoinTransferRequest

if TYPE_CHECKING:
    from gradbus_rollout.member import Member

_log = get_logger(__name__)
_CALL_SECONDS = 2.0


class Receiver:
    """One run's broadcasts, one at a time; of those announced meanwhile the newest counts."""

    def __init__(self, wires: WorkerWires, run_id: str, cache_dir: Path, device: str) -> None:
        self._wires = wires
        self._run_id = run_id
        self._cache_dir = cache_dir
        self._device = device
        self._settings = TransferSettings()
        self._newest: Transfer | None = None
        self._news = asyncio.Event()
        self._member: Member | None = None

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Takes part inside the block; lets go of everything after it."""
        presence = self._wires.station.presence
        try:
            async with self._wires.bus.subscribed(subjects.transfers(self._run_id), self._announced), background(self._serve(), "receiver"):
                presence.receives = True
                self._wires.station.touch()
                yield
        finally:
            presence.receives = False
            self._let_go()

    async def _announced(self, payload: bytes) -> None:
        self._newest = Transfer.FromString(payload)
        self._news.set()

    async def _serve(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            transfer, self._newest = self._newest, None
            if transfer is not None:
                await self._take_part(transfer)

    async def _take_part(self, transfer: Transfer) -> None:
        terms = transfer.terms
        try:
            members = await self._join(transfer)
            if members is None:
                return
            member = self._member = self._member or self._new_member()
            async with asyncio.timeout(terms.stall_seconds):
                await in_own_thread(lambda: member.connect(members, terms), "transfer-connect")
            async with asyncio.timeout(terms.seconds):
                await in_own_thread(lambda: member.receive(transfer, members), "transfer-receive")
        except (AioRpcError, CorruptRecordError, RuntimeError, OSError, TimeoutError) as error:
            reason = error.details() if isinstance(error, AioRpcError) else first_line(error)
            _log.warning("transfer_missed", run_id=self._run_id, step=transfer.step, error=f"{type(error).__name__}: {reason}")
            self._let_go()

    async def _join(self, transfer: Transfer) -> Membership | None:
        """The members, if this worker is one."""
        name = self._wires.station.presence.worker
        held = self._member.held_group if self._member else ""
        request = JoinTransferRequest(run_id=self._run_id, transfer_id=transfer.transfer_id, worker=name, held_group=held)
        seconds = _CALL_SECONDS + transfer.terms.join_seconds
        members = (await self._wires.weight_store.JoinTransfer(request, timeout=seconds)).membership
        if name in members.workers:
            return members
        _log.info("transfer_missed", run_id=self._run_id, step=transfer.step, error="its membership was closed")
        return None

    def _new_member(self) -> Member:
        from gradbus_rollout.member import Member  # noqa: PLC0415 - torch, which a worker without broadcasts may lack

        return Member(self._wires.station.presence.worker, self._settings.host, self._device, self._cache_dir)

    def _let_go(self) -> None:
        """A thread that hangs is left behind with what it holds."""
        member, self._member = self._member, None
        if member is not None:
            threading.Thread(target=member.abort, name="transfer-abort", daemon=True).start()

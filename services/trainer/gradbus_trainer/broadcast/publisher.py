"""Offers each version to the rollout workers by broadcast, beside its upload.

The broadcast only fills the workers' caches. Every version is in object storage before it is published, so nothing that
happens here decides anything but time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grpc.aio import AioRpcError

from gradbus.aio.threads import in_own_thread
from gradbus.bus import EventLog
from gradbus.errors import first_line
from gradbus.ids import digest_of_file
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus.telemetry import PROCESS, WireOperation, get_logger
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastMembership
from gradbus.v1.weight_store_service_pb2 import OpenBroadcastRequest
from gradbus.v1.weights_pb2 import Shard
from gradbus_trainer.broadcast.sender import BroadcastSender
from gradbus_trainer.versions.weights_io import Export

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub

_log = get_logger(__name__)
_CALL_SECONDS = 2.0
_BROADCAST = WireOperation("broadcast", {"gradbus.operation": "broadcast"})
Offer = Callable[[Export], Coroutine[Any, Any, None]]
Outcome = Literal["all", "some", "none"]


@dataclass(frozen=True, slots=True)
class BroadcastResult:
    """What became of one broadcast."""

    step: int
    received: list[str]
    dropped: list[str]
    """Workers that were waited for and did not get all: they take the version from object storage."""
    size_bytes: int
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """In a word."""
        if not self.dropped:
            return "all"
        return "some" if self.received else "none"


class BroadcastPublisher:
    """One run's broadcasts under one term, one at a time."""

    def __init__(self, stub: WeightStoreServiceAsyncStub, events: EventLog, run_id: str, term: int, device: str) -> None:
        self._stub = stub
        self._events = events
        self._run_id = run_id
        self._term = term
        self._device = device
        self._settings = BroadcastSettings()
        self._broadcaster: BroadcastSender | None = None

    async def offer(self, export: Export) -> None:
        """Broadcasts a version to whoever joins. Raises nothing, and returns within the broadcast's deadlines."""
        if export.noop:
            return  # the same bytes as the version before
        try:
            await self._offer(export)
        except (AioRpcError, OSError, TimeoutError) as error:
            reason = error.details() if isinstance(error, AioRpcError) else str(error)
            _log.warning("broadcast_not_opened", run_id=self._run_id, step=export.step, error=f"{type(error).__name__}: {reason}")
            self.close()
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of what is under way; a thread that hangs is left behind."""
        broadcaster, self._broadcaster = self._broadcaster, None
        if broadcaster is not None:
            threading.Thread(target=broadcaster.abort, name="broadcast-abort", daemon=True).start()

    async def _offer(self, export: Export) -> None:
        if self._broadcaster is None:
            async with asyncio.timeout(self._settings.stall_seconds):
                self._broadcaster = await in_own_thread(lambda: BroadcastSender(self._settings, self._device), "broadcast-open")
        broadcaster = self._broadcaster
        digest = await asyncio.to_thread(digest_of_file, export.file.path)
        shard = Shard(digest=digest, size_bytes=export.file.size_bytes)
        broadcast = Broadcast(run_id=self._run_id, term=self._term, step=export.step, shards=[shard], config=self._settings.config)
        request = OpenBroadcastRequest(broadcast=broadcast, address=broadcaster.address, previous_group=broadcaster.held_group)
        response = await self._stub.OpenBroadcast(request, timeout=_CALL_SECONDS + self._settings.join_seconds)
        members, began = response.membership, time.perf_counter()
        received = await self._send(broadcaster, members, export) if members.workers else []
        if members.workers or members.absent:
            dropped = sorted({*members.workers, *members.absent} - set(received))
            self._tell(BroadcastResult(export.step, received, dropped, export.file.size_bytes, time.perf_counter() - began))

    async def _send(self, broadcaster: BroadcastSender, members: BroadcastMembership, export: Export) -> list[str]:
        """Who has all of it. Each wait below has a deadline of its own too, but torch keeps not all of them."""
        content = export.file.mapped()
        try:
            with _BROADCAST.measured(len(content)) as sending:
                async with asyncio.timeout(self._settings.stall_seconds):
                    await in_own_thread(lambda: broadcaster.connect(members), "broadcast-connect")
                async with asyncio.timeout(self._settings.seconds):
                    received = await in_own_thread(lambda: broadcaster.send(export.step, members, [content]), "broadcast-send")
                sending.items = len(received)
                return received
        except (RuntimeError, TimeoutError) as error:
            _log.warning("broadcast_failed", run_id=self._run_id, step=export.step, error=f"{type(error).__name__}: {first_line(error)}")
            self.close()
            return []

    def _tell(self, offered: BroadcastResult) -> None:
        PROCESS.count("gradbus.broadcasts", 1, {"gradbus.outcome": offered.outcome})
        data: dict[str, object] = {
            "version": offered.step,
            "outcome": offered.outcome,
            "received": offered.received,
            "dropped": offered.dropped,
        }
        data |= {"bytes": offered.size_bytes, "seconds": offered.seconds}
        count = len(offered.received) + len(offered.dropped)
        text = f"version {offered.step} reached {len(offered.received)} of {count} workers by broadcast"
        if offered.dropped:
            _log.warning("broadcast_dropped", run_id=self._run_id, **data)
            text += f"; from object storage: {', '.join(offered.dropped)}"
        key = f"broadcast:{self._term}:{offered.step}"
        self._events.emit("broadcast", text, data, "warning" if offered.dropped else "info", key)

"""Broadcasts each version to the rollout workers, beside its upload.

The broadcast only fills the workers' caches. Every version is in object storage before it is published, so a broadcast that
fails costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from grpc.aio import AioRpcError

from gradbus.aio.threads import in_own_thread
from gradbus.bus import EventLog
from gradbus.errors import SettingsError, first_line
from gradbus.ids import digest_of_file
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus.telemetry import PROCESS, WireOperation, get_logger
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastMembership
from gradbus.v1.weight_store_service_pb2 import OpenBroadcastRequest
from gradbus.v1.weights_pb2 import Shard
from gradbus_trainer.broadcast.sender import BroadcastSender
from gradbus_trainer.tensors.export import Export

if TYPE_CHECKING:
    from gradbus.v1.weight_store_service_pb2_grpc import WeightStoreServiceAsyncStub

_log = get_logger(__name__)
_CALL_SECONDS = 2.0
_BROADCAST = WireOperation("broadcast", {"gradbus.operation": "broadcast"})
Outcome = Literal["all", "some", "none"]


@dataclass(frozen=True, slots=True)
class BroadcastResult:
    """The result of one broadcast."""

    step: int
    received: list[str]
    dropped: list[str]
    """Workers that did not receive everything; they load the version from object storage."""
    size_bytes: int
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """As one word, for metrics."""
        if not self.dropped:
            return "all"
        return "some" if self.received else "none"


class BroadcastPublisher:
    """One run's broadcasts under one term, one at a time."""

    def __init__(self, stub: WeightStoreServiceAsyncStub, events: EventLog, run_id: str, term: int, device: str) -> None:
        """Raises SettingsError for NCCL without a GPU: the workers would wait for it in groups of another kind."""
        self._stub = stub
        self._events = events
        self._run_id = run_id
        self._term = term
        self._device = device
        self._settings = BroadcastSettings()
        if self._settings.backend == "nccl" and not device.startswith("cuda"):
            raise SettingsError(
                f"GRADBUS_BROADCAST_BACKEND is nccl and GRADBUS_DEVICE is {device}; set GRADBUS_DEVICE=cuda, or the backend to gloo"
            )
        self._sender: BroadcastSender | None = None

    async def broadcast(self, export: Export) -> None:
        """Broadcasts a version to the workers that join. Raises nothing, and returns within the broadcast's deadlines."""
        if export.noop:
            return  # the same bytes as the version before
        try:
            await self._broadcast(export)
        except (AioRpcError, OSError, TimeoutError) as error:
            reason = error.details() if isinstance(error, AioRpcError) else str(error)
            _log.warning("broadcast_not_opened", run_id=self._run_id, step=export.step, error=f"{type(error).__name__}: {reason}")
            self.close()
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Aborts the broadcast under way; a thread that hangs is left behind."""
        sender, self._sender = self._sender, None
        if sender is not None:
            threading.Thread(target=sender.abort, name="broadcast-abort", daemon=True).start()

    async def _broadcast(self, export: Export) -> None:
        if self._sender is None:
            async with asyncio.timeout(self._settings.stall_seconds):
                self._sender = await in_own_thread(lambda: BroadcastSender(self._settings, self._device), "broadcast-open")
        sender = self._sender
        digest = await asyncio.to_thread(digest_of_file, export.file.path)
        shard = Shard(digest=digest, size_bytes=export.file.size_bytes)
        broadcast = Broadcast(run_id=self._run_id, term=self._term, step=export.step, shards=[shard], config=self._settings.config)
        request = OpenBroadcastRequest(broadcast=broadcast, address=sender.address, previous_group=sender.open_group)
        response = await self._stub.OpenBroadcast(request, timeout=_CALL_SECONDS + self._settings.join_seconds)
        members, began = response.membership, time.perf_counter()
        received = await self._send(sender, members, export) if members.workers else []
        if members.workers or members.absent:
            dropped = sorted({*members.workers, *members.absent} - set(received))
            self._report(BroadcastResult(export.step, received, dropped, export.file.size_bytes, time.perf_counter() - began))

    async def _send(self, sender: BroadcastSender, members: BroadcastMembership, export: Export) -> list[str]:
        """The workers that received everything. The waits inside have deadlines too, but torch does not keep all of them."""
        content = export.file.mapped()
        try:
            with _BROADCAST.measured(len(content)) as sending:
                async with asyncio.timeout(self._settings.stall_seconds):
                    await in_own_thread(lambda: sender.connect(members), "broadcast-connect")
                async with asyncio.timeout(self._settings.seconds):
                    received = await in_own_thread(lambda: sender.send(export.step, members, [content]), "broadcast-send")
                sending.items = len(received)
                return received
        except (RuntimeError, TimeoutError) as error:
            _log.warning("broadcast_failed", run_id=self._run_id, step=export.step, error=f"{type(error).__name__}: {first_line(error)}")
            self.close()
            return []

    def _report(self, result: BroadcastResult) -> None:
        PROCESS.count("gradbus.broadcasts", 1, {"gradbus.outcome": result.outcome})
        data: dict[str, object] = {
            "version": result.step,
            "outcome": result.outcome,
            "received": result.received,
            "dropped": result.dropped,
        }
        data |= {"bytes": result.size_bytes, "seconds": result.seconds}
        count = len(result.received) + len(result.dropped)
        text = f"version {result.step} reached {len(result.received)} of {count} workers by broadcast"
        if result.dropped:
            _log.warning("broadcast_dropped", run_id=self._run_id, **data)
            text += f"; from object storage: {', '.join(result.dropped)}"
        key = f"broadcast:{self._term}:{result.step}"
        self._events.emit("broadcast", text, data, "warning" if result.dropped else "info", key)

"""The trainer's end of a broadcast: blocking, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gradbus import crash_points
from gradbus.errors import first_line
from gradbus.process.broadcast_settings import BroadcastSettings
from gradbus.telemetry import get_logger
from gradbus.v1.broadcast_pb2 import BroadcastMembership
from gradbus_kernels.weights.broadcast import BroadcastGroup, RankInfo, Rendezvous

_log = get_logger(__name__)


class BroadcastSender:
    """Serves the rendezvous of broadcast groups, and keeps the newest group open while no member fails."""

    def __init__(self, settings: BroadcastSettings, device: str) -> None:
        """Raises OSError when it cannot listen."""
        self._settings = settings
        self._device = device if settings.backend == "nccl" else "cpu"
        self._rendezvous = Rendezvous.serve(settings.host, settings.port, settings.stall_seconds)
        self._group: BroadcastGroup | None = None
        self.open_group = ""
        """Name of the group that can be used again; empty if there is none."""

    @property
    def address(self) -> str:
        """host:port of the rendezvous, for the members of a new group."""
        return self._rendezvous.address

    def connect(self, members: BroadcastMembership) -> None:
        """Opens the group if it is a new one. Raises RuntimeError (torch's) when a member does not join."""
        if self._group is None or self.open_group != members.group:
            self.abort()
            size = 1 + len(members.workers)
            rank = RankInfo(members.group, 0, size, self._settings.host, self._device, self._settings.stall_seconds)
            self._group = BroadcastGroup(self._rendezvous, rank)
            self.open_group = members.group

    def send(self, step: int, members: BroadcastMembership, parts: Sequence[memoryview]) -> list[str]:
        """Names of the workers that received every byte. A failure is logged and closes the group."""
        group, seconds = self._group, self._settings.stall_seconds
        if group is None:
            return []  # aborted meanwhile
        try:
            crash_points.reached("mid-broadcast")
            group.send(parts, self._settings.bucket_bytes, time.monotonic() + self._settings.seconds)
        except (RuntimeError, TimeoutError) as error:
            _log.warning("broadcast_interrupted", error=first_line(error), workers=list(members.workers))
            seconds = 0.0
        keys = [f"{members.group}/{step}/{worker}" for worker in members.workers]
        good = self._rendezvous.take_receipts(keys, seconds)
        received = [worker for worker, whole in zip(members.workers, good, strict=True) if whole]
        if len(received) < len(members.workers):
            self.abort()
        return received

    def abort(self) -> None:
        """Aborts the group, from any thread; every wait in it ends."""
        group, self._group, self.open_group = self._group, None, ""
        if group is not None:
            group.abort()

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
    """Serves the store in which groups meet, and holds the newest group as long as all its members do well."""

    def __init__(self, settings: BroadcastSettings, device: str) -> None:
        """Raises OSError when it cannot listen."""
        self._settings = settings
        self._device = device if settings.backend == "nccl" else "cpu"
        self._meeting = Rendezvous.serve(settings.host, settings.port, settings.stall_seconds)
        self._group: BroadcastGroup | None = None
        self.held_group = ""
        """Name of the group that can be used again."""

    @property
    def address(self) -> str:
        """Where members of a new group meet."""
        return self._meeting.address

    def connect(self, members: BroadcastMembership) -> None:
        """Makes the group if it is a new one. Raises RuntimeError (torch's) when a member does not come."""
        if self._group is None or self.held_group != members.group:
            self.abort()
            size = 1 + len(members.workers)
            place = RankInfo(members.group, 0, size, self._settings.host, self._device, self._settings.stall_seconds)
            self._group = BroadcastGroup(self._meeting, place)
            self.held_group = members.group

    def send(self, step: int, members: BroadcastMembership, parts: Sequence[memoryview]) -> list[str]:
        """Names of the workers that have received every byte. What fails on the way is logged, and ends the group."""
        group, seconds = self._group, self._settings.stall_seconds
        if group is None:
            return []  # given up meanwhile
        try:
            crash_points.reached("mid-broadcast")
            group.send(parts, self._settings.bucket_bytes, time.monotonic() + self._settings.seconds)
        except (RuntimeError, TimeoutError) as error:
            _log.warning("broadcast_broke", error=first_line(error), workers=list(members.workers))
            seconds = 0.0
        keys = [f"{members.group}/{step}/{worker}" for worker in members.workers]
        good = self._meeting.take_receipts(keys, seconds)
        received = [worker for worker, whole in zip(members.workers, good, strict=True) if whole]
        if len(received) < len(members.workers):
            self.abort()
        return received

    def abort(self) -> None:
        """Gives the group up, from any thread; whatever waits in it ends."""
        group, self._group, self.held_group = self._group, None, ""
        if group is not None:
            group.abort()

"""The trainer's end of a broadcast: blocking, in a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gradbus.faults import point
from gradbus.telemetry import get_logger
from gradbus.transfer_settings import TransferSettings
from gradbus.v1.transfer_pb2 import Membership
from gradbus_kernels.weights_broadcast import BroadcastGroup, Meeting, Place

_log = get_logger(__name__)


class Broadcaster:
    """Serves the store in which groups meet, and holds the newest group as long as all its members do well."""

    def __init__(self, settings: TransferSettings, device: str) -> None:
        """Raises OSError when it cannot listen."""
        self._settings = settings
        self._device = device if settings.backend == "nccl" else "cpu"
        self._meeting = Meeting.serve(settings.host, settings.port, settings.stall_seconds)
        self._group: BroadcastGroup | None = None
        self.held_group = ""
        """Name of the group that can be used again."""

    @property
    def address(self) -> str:
        """Where members of a new group meet."""
        return self._meeting.address

    def send(self, step: int, members: Membership, parts: Sequence[memoryview]) -> list[str]:
        """Names of the workers that have received every byte. What fails on the way is logged, and ends the group."""
        deadline = time.monotonic() + self._settings.seconds
        seconds = self._settings.stall_seconds
        try:
            group = self._group_of(members)
            group.send(parts, self._settings.bucket_bytes, deadline)
        except (RuntimeError, TimeoutError) as error:
            _log.warning("broadcast_broke", error=_first_line(error), workers=list(members.workers))
            self.abort()
            seconds = 0.0
        received = self._received(step, members, min(seconds, max(0.0, deadline - time.monotonic())))
        if len(received) < len(members.workers):
            self.abort()
        return received

    def abort(self) -> None:
        """Gives the group up, from any thread; whatever waits in it ends."""
        group, self._group, self.held_group = self._group, None, ""
        if group is not None:
            group.abort()

    def _group_of(self, members: Membership) -> BroadcastGroup:
        if self._group is None or self.held_group != members.group:
            self.abort()
            size = 1 + len(members.workers)
            place = Place(members.group, 0, size, self._settings.host, self._device, self._settings.stall_seconds)
            self._group = BroadcastGroup(self._meeting, place)
            self.held_group = members.group
        point("mid-transfer")
        return self._group

    def _received(self, step: int, members: Membership, seconds: float) -> list[str]:
        """Who says so within `seconds`; their own check of the digests is what they say."""
        keys = [f"{members.group}/{step}/{worker}" for worker in members.workers]
        good = self._meeting.take_receipts(keys, seconds)
        return [worker for worker, received in zip(members.workers, good, strict=True) if received]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]

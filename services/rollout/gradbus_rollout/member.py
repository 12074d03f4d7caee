"""A member of a broadcast group: blocking, in a thread of its own. The one module of the worker's broadcasts with torch."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from gradbus.errors import CorruptRecordError
from gradbus.faults import point
from gradbus.v1.transfer_pb2 import Membership, Transfer, TransferTerms
from gradbus_kernels.weights_broadcast import BroadcastGroup, Meeting, Place
from gradbus_rollout.shard_cache import KEPT, ShardCache
from gradbus_rollout.shard_files import ShardFiles


class Member:
    """Holds the newest group as long as it does well."""

    def __init__(self, worker: str, host: str, device: str, cache_dir: Path) -> None:
        self._worker = worker
        self._host = host
        self._device = device
        self._shards = cache_dir / "shards"
        self._drafts = cache_dir / "receiving" / worker
        shutil.rmtree(self._drafts, ignore_errors=True)  # of a process that was killed
        self._meeting: Meeting | None = None
        self._group: BroadcastGroup | None = None
        self.held_group = ""
        """Name of the group that can be used again."""

    def connect(self, members: Membership, terms: TransferTerms) -> None:
        """Joins the group if it is a new one. Raises RuntimeError (torch's) when a member does not come."""
        if self._group is None or self.held_group != members.group:
            self.abort()
            device = self._device if terms.backend == "nccl" else "cpu"
            self._meeting = Meeting.visit(members.address, terms.stall_seconds)
            rank = 1 + list(members.workers).index(self._worker)
            place = Place(members.group, rank, 1 + len(members.workers), self._host, device, terms.stall_seconds)
            self._group = BroadcastGroup(self._meeting, place)
            self.held_group = members.group

    def receive(self, transfer: Transfer, members: Membership) -> None:
        """Fills the cache, and gives a receipt. Raises CorruptRecordError, and what the group raises."""
        meeting, group, terms = self._meeting, self._group, transfer.terms
        if meeting is None or group is None:
            raise TimeoutError("the group was given up meanwhile; the version is taken from object storage")
        deadline = time.monotonic() + terms.seconds
        files = ShardFiles(transfer.shards, self._shards, self._drafts)

        def take(piece: memoryview) -> None:
            point("mid-transfer")
            files.take(piece)

        try:
            group.receive(take, sum(shard.size_bytes for shard in transfer.shards), terms.bucket_bytes, deadline)
        finally:
            files.close()
        ShardCache(self._shards).evict(max(KEPT, len(transfer.shards)))
        meeting.leave_receipt(f"{members.group}/{transfer.step}/{self._worker}", good=not files.damaged)
        if files.damaged:
            raise CorruptRecordError(f"shards {', '.join(files.damaged)} came damaged; they are taken from object storage")

    def abort(self) -> None:
        """Gives the group up, from any thread."""
        group, self._group, self.held_group = self._group, None, ""
        if group is not None:
            group.abort()

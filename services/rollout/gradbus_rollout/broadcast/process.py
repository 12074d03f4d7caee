"""A member of a broadcast group: a process that has torch and nothing else of ours, and is killed when it hangs.

So a worker whose engine is a server takes part by the server's Python, and no thread is ever left behind in torch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from gradbus import crash_points
from gradbus.errors import BroadcastError, CorruptRecordError
from gradbus.v1.broadcast_pb2 import Broadcast, BroadcastConfig, BroadcastMembership
from gradbus_kernels.weights import __file__ as _weights
from gradbus_rollout.weights.cache import KEPT, ShardCache
from gradbus_rollout.weights.cache_writer import ShardFiles

_PROGRAM: Final = str(Path(_weights).with_name("broadcast.py"))
_PIECE_BYTES: Final = 1 << 20
_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """Who takes part, and where."""

    worker: str
    host: str
    """Address of this machine that the other members reach."""
    device: str
    python: str
    """A Python that has torch."""
    cache_dir: Path


class BroadcastProcess:
    """Holds the newest group as long as it does well. Blocking, for a thread; `abort` from any other ends what blocks.

    All methods raise BroadcastError once the process has ended.
    """

    def __init__(self, seat: MemberConfig) -> None:
        self._seat = seat
        self._shards = seat.cache_dir / "shards"
        self._drafts = seat.cache_dir / "receiving" / seat.worker
        shutil.rmtree(self._drafts, ignore_errors=True)  # of a process that was killed
        self.previous_group = ""
        """Name of the group that can be used again."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            # Isolated: nothing of ours but this one file may meet the packages of another environment.
            command = [seat.python, "-I", _PROGRAM]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        except OSError as error:
            raise BroadcastError(f"cannot run {seat.python} ({error}); it must be a Python that has torch") from error
        self._orders, self._answers = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def wait_until_ready(self) -> None:
        """Torch is imported. Raises BroadcastError where it cannot be."""
        self._answered()

    def connect(self, members: BroadcastMembership, config: BroadcastConfig) -> None:
        """Joins the group if it is a new one."""
        if self.previous_group == members.group:
            return
        place = {
            "group": members.group,
            "rank": 1 + list(members.workers).index(self._seat.worker),
            "size": 1 + len(members.workers),
            "host": self._seat.host,
            "device": self._seat.device if config.backend == "nccl" else "cpu",
            "stall_seconds": config.stall_seconds,
        }
        self._order("connect", address=members.address, place=place)
        self._answered()
        self.previous_group = members.group

    def receive(self, broadcast: Broadcast, members: BroadcastMembership) -> None:
        """Fills the cache, and gives a receipt. Raises CorruptRecordError for bytes that are not what they should be."""
        config, total = broadcast.config, sum(shard.size_bytes for shard in broadcast.shards)
        self._order("receive", total=total, bucket_bytes=config.bucket_bytes, seconds=config.seconds)
        files = ShardFiles(broadcast.shards, self._shards, self._drafts)
        try:
            while total:
                piece = self._read(min(total, _PIECE_BYTES))
                crash_points.reached("mid-broadcast")
                files.take(memoryview(piece))
                total -= len(piece)
        finally:
            files.close()
        ShardCache(self._shards).evict(max(KEPT, len(broadcast.shards)))
        self._order("receipt", key=f"{members.group}/{broadcast.step}/{self._seat.worker}", good=not files.damaged)
        self._answered()
        if files.damaged:
            raise CorruptRecordError(f"shards {', '.join(files.damaged)} came damaged; they are taken from object storage")

    def abort(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def _order(self, do: str, **details: Any) -> None:
        try:
            self._orders.write(json.dumps({"do": do, **details}).encode() + b"\n")
            self._orders.flush()
        except (OSError, ValueError) as error:
            raise self._over() from error

    def _answered(self) -> None:
        if self._read(1) != b"\n":
            raise self._over()

    def _read(self, most: int) -> bytes:
        if found := self._answers.read(most):
            return found
        raise self._over()

    def _over(self) -> BroadcastError:
        self.abort()
        self._errors.seek(0)
        said = self._errors.read()[-_SHOWN:].decode(errors="replace").strip().splitlines() or ["it was killed"]
        return BroadcastError(f"the process that takes part in broadcasts ended: {said[-1]}; versions come from object storage")

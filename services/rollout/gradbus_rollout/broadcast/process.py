"""The process that takes part in weight broadcasts: it imports torch and no code of Gradbus, and is killed when it hangs.

A worker without torch, beside a server engine, runs it with the server's Python. A hung collective leaves no thread behind.
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
from gradbus_rollout.weights.stream_writer import ShardStreamWriter

_PROGRAM: Final = str(Path(_weights).with_name("broadcast.py"))
_PIECE_BYTES: Final = 1 << 20
_SHOWN = 2000


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """A worker as a member of its run's broadcast groups."""

    worker: str
    host: str
    """Address of this machine that the other members can reach."""
    device: str
    python: str
    """A Python that has torch."""
    cache_dir: Path

    def device_for(self, backend: str) -> str:
        """The device of its buckets. Raises BroadcastError for NCCL without a GPU: by gloo it would wait for members that never come."""
        if backend != "nccl":
            return "cpu"
        if not self.device.startswith("cuda"):
            raise BroadcastError(
                f"the trainer broadcasts by NCCL and GRADBUS_DEVICE is {self.device} here; set it to cuda on this worker, or "
                "GRADBUS_BROADCAST_BACKEND=gloo on the trainer"
            )
        return self.device


class BroadcastProcess:
    """One process, member of one group at a time. Its methods block, so call them in a thread; `abort` from another thread ends them.

    All methods raise BroadcastError once the process has ended.
    """

    def __init__(self, member: MemberConfig) -> None:
        self._member = member
        self._shards = member.cache_dir / "shards"
        self._scratch = member.cache_dir / "receiving" / member.worker
        shutil.rmtree(self._scratch, ignore_errors=True)  # left by a process that was killed
        self.group = ""
        """Name of the group joined, which later broadcasts use again; empty before the first."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            # Isolated: this one file runs with the packages of another environment.
            command = [member.python, "-I", _PROGRAM]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        except OSError as error:
            raise BroadcastError(f"cannot run {member.python} ({error}); it must be a Python that has torch") from error
        self._commands, self._answers = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)

    def wait_until_ready(self) -> None:
        """Returns when torch is imported. Raises BroadcastError when it cannot be."""
        self._wait_for_answer()

    def connect(self, members: BroadcastMembership, config: BroadcastConfig) -> None:
        """Joins the group of `members`, unless it is joined already."""
        if self.group == members.group:
            return
        rank_info = {
            "group": members.group,
            "rank": 1 + list(members.workers).index(self._member.worker),
            "size": 1 + len(members.workers),
            "host": self._member.host,
            "device": self._member.device_for(config.backend),
            "stall_seconds": config.stall_seconds,
        }
        self._send("connect", address=members.address, rank_info=rank_info)
        self._wait_for_answer()
        self.group = members.group

    def receive(self, broadcast: Broadcast, members: BroadcastMembership) -> None:
        """Writes the shards into the cache and leaves a receipt. Raises CorruptRecordError when bytes came damaged."""
        config, total = broadcast.config, sum(shard.size_bytes for shard in broadcast.shards)
        self._send("receive", total=total, bucket_bytes=config.bucket_bytes, seconds=config.seconds)
        writer = ShardStreamWriter(broadcast.shards, self._shards, self._scratch)
        try:
            while total:
                piece = self._read(min(total, _PIECE_BYTES))
                crash_points.reached("mid-broadcast")
                writer.write(memoryview(piece))
                total -= len(piece)
        finally:
            writer.close()
        ShardCache(self._shards).evict(max(KEPT, len(broadcast.shards)))
        self._send("receipt", key=f"{members.group}/{broadcast.step}/{self._member.worker}", good=not writer.damaged)
        self._wait_for_answer()
        if writer.damaged:
            raise CorruptRecordError(f"shards {', '.join(writer.damaged)} came damaged; they are fetched from object storage")

    def abort(self) -> None:
        """Kills the process, which ends every blocked call."""
        self._process.kill()
        self._process.wait()

    def _send(self, do: str, **details: Any) -> None:
        try:
            self._commands.write(json.dumps({"do": do, **details}).encode() + b"\n")
            self._commands.flush()
        except (OSError, ValueError) as error:
            raise self._ended() from error

    def _wait_for_answer(self) -> None:
        if self._read(1) != b"\n":
            raise self._ended()

    def _read(self, most: int) -> bytes:
        if found := self._answers.read(most):
            return found
        raise self._ended()

    def _ended(self) -> BroadcastError:
        self.abort()
        self._errors.seek(0)
        log = self._errors.read()[-_SHOWN:].decode(errors="replace").strip().splitlines() or ["it was killed"]
        return BroadcastError(f"the process that takes part in broadcasts ended: {log[-1]}; versions come from object storage")

"""Broadcasts a stream of bytes from rank 0 to all other ranks, in flat uint8 buckets over gloo or NCCL.

There is no default process group: a process may be in several groups, and a broken group is simply dropped. Nothing is pickled;
every wait has a deadline.

Run as a script (`python -I broadcast.py`), this file is a group member that another process commands over pipes; that process
may lack torch. The script needs only torch, so this module imports no other module of Gradbus.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO, cast

import torch

# As torch.distributed has them; here they have types.
from torch._C._distributed_c10d import Backend, BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

if TYPE_CHECKING:
    from typing_extensions import Buffer

_GOOD, _BAD = "1", "0"
_SMALL_SECONDS = 0.001
_NCCL = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",  # otherwise a wait returns at once and its deadline is nobody's
    # A broken broadcast is handled here; by default NCCL's watchdog would end the process.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Variables that a group of NCCL reads when it is made."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One member of a broadcast group."""

    group: str
    """Name of the group; groups that share a TCPStore have different names."""
    rank: int
    size: int
    host: str
    """Address of this machine that the others reach; gloo binds to it."""
    device: str = "cpu"
    """`cpu`: gloo; a CUDA device: NCCL."""
    stall_seconds: float = 5.0
    """Deadline of connecting, and of each bucket."""


class Rendezvous:
    """A TCPStore on rank 0: the members of a new group find each other in it, and leave receipts there."""

    def __init__(self, store: TCPStore) -> None:
        self.store = store

    @classmethod
    def serve(cls, host: str, port: int, seconds: float) -> Rendezvous:
        """Listens on `host` alone; by itself a TCPStore listens on all addresses. Raises OSError when the address is in use."""
        with socket.create_server((host, port)) as listener:
            address, bound = listener.getsockname()[:2]
            handle = listener.detach()
        wait = timedelta(seconds=seconds)
        return cls(TCPStore(address, bound, is_master=True, wait_for_workers=False, timeout=wait, master_listen_fd=handle))

    @classmethod
    def join(cls, address: str, seconds: float) -> Rendezvous:
        """Connects to the one served at `host:port`. Raises RuntimeError (torch's DistError) when nobody answers."""
        host, _, port = address.rpartition(":")
        return cls(TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds)))

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.store.host}:{self.store.port}"

    def leave_receipt(self, key: str, good: bool) -> None:
        """Records whether all bytes arrived undamaged."""
        self.store.set(key, _GOOD if good else _BAD)

    def take_receipts(self, keys: Sequence[str], seconds: float) -> list[bool]:
        """For each key, whether it has a good receipt; waits for `seconds` at most, and deletes the receipts."""
        if seconds > 0:
            with suppress(RuntimeError):  # not all came in time
                self.store.wait(list(keys), timedelta(seconds=seconds))
        return [self._take(key) == _GOOD for key in keys]

    def _take(self, key: str) -> str:
        if not self.store.check([key]):
            return ""
        found = self.store.get(key).decode()
        self.store.delete_key(key)
        return found


def bucket_sizes(total: int, bucket_bytes: int) -> list[int]:
    """Sizes of the buckets that `total` bytes travel in: all full but the last."""
    whole, rest = divmod(total, bucket_bytes)
    return [bucket_bytes] * whole + ([rest] if rest else [])


class BroadcastGroup:
    """A group of ranks with two buckets: one is sent while the other is filled or emptied. Blocks; belongs to one thread.

    All methods raise RuntimeError (torch's) or TimeoutError when a member is gone, hangs or is too slow; the group cannot be
    used afterwards.
    """

    def __init__(self, rendezvous: Rendezvous, rank_info: RankInfo) -> None:
        """Returns when all members of the group have joined."""
        self._rank_info = rank_info
        self._group = _connected(PrefixStore(rank_info.group, rendezvous.store), rank_info)
        self._buckets: list[torch.Tensor] = []
        self._pinned = torch.empty(0, dtype=torch.uint8)

    def send(self, parts: Sequence[memoryview], bucket_bytes: int, deadline: float) -> None:
        """Rank 0: sends the bytes of all `parts`, in order. `deadline` is a time of `time.monotonic`."""
        source = _Joined(parts)
        under_way: deque[Work] = deque()
        for bucket in self._each_bucket(source.total, bucket_bytes):
            source.fill(host := self._host(bucket))
            if bucket.is_cuda:
                bucket.copy_(host)
            under_way.append(self._broadcast(bucket))
            if len(under_way) == len(self._buckets):
                self._wait(under_way.popleft(), deadline)
        while under_way:
            self._wait(under_way.popleft(), deadline)

    def receive(self, take: Callable[[memoryview], None], total: int, bucket_bytes: int, deadline: float) -> None:
        """The other ranks: passes `total` bytes to `take`, in order; a piece is valid until `take` returns."""
        under_way: deque[tuple[Work, torch.Tensor]] = deque()

        def finish() -> None:
            work, bucket = under_way.popleft()
            self._wait(work, deadline)
            host = self._host(bucket)
            if bucket.is_cuda:
                host.copy_(bucket)
            take(_bytes_of(host))

        for bucket in self._each_bucket(total, bucket_bytes):
            under_way.append((self._broadcast(bucket), bucket))
            if len(under_way) == len(self._buckets):
                finish()
        while under_way:
            finish()

    def abort(self) -> None:
        """Ends every broadcast in progress, from any thread, and closes the connections."""
        self._group.abort()

    def _each_bucket(self, total: int, bucket_bytes: int) -> Iterator[torch.Tensor]:
        """Two buffers in turn; allocated again only when a stream needs larger ones."""
        sizes = bucket_sizes(total, bucket_bytes)
        if sizes and (not self._buckets or self._buckets[0].numel() < sizes[0]):
            self._buckets = [torch.empty(sizes[0], dtype=torch.uint8, device=self._rank_info.device) for _ in range(2)]
        for number, size in enumerate(sizes):
            yield self._buckets[number % 2][:size]

    def _host(self, bucket: torch.Tensor) -> torch.Tensor:
        """Memory of the host for a bucket's bytes: its own, or a pinned copy's, whose copies are many times faster."""
        if not bucket.is_cuda:
            return bucket
        if self._pinned.numel() < bucket.numel():
            self._pinned = torch.empty(self._buckets[0].numel(), dtype=torch.uint8, pin_memory=True)
        return self._pinned[: bucket.numel()]

    def _broadcast(self, bucket: torch.Tensor) -> Work:
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=self._rank_info.stall_seconds)
        options.asyncOp = True
        work: Work = self._group.broadcast([bucket], options)  # type: ignore[attr-defined] # not in its stub
        return work

    def _wait(self, work: Work, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left < _SMALL_SECONDS:
            raise TimeoutError("the broadcast took longer than its deadline; raise GRADBUS_BROADCAST_SECONDS")
        work.wait(timedelta(seconds=min(left, self._rank_info.stall_seconds)))


class _Joined:
    """Reads several parts as one stream."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = deque(parts)
        self.total = sum(len(part) for part in parts)

    def fill(self, bucket: torch.Tensor) -> None:
        """Fills the whole of `bucket` (in host memory) with the next bytes."""
        target = _bytes_of(bucket)
        while target:
            part = self._parts.popleft()
            count = min(len(part), len(target))
            target[:count] = part[:count]
            target = target[count:]
            if count < len(part):
                self._parts.appendleft(part[count:])


def _bytes_of(bucket: torch.Tensor) -> memoryview:
    return memoryview(cast("Buffer", bucket.numpy()))


def _connected(store: Store, rank_info: RankInfo) -> Backend:
    timeout = timedelta(seconds=rank_info.stall_seconds)
    if rank_info.device.startswith("cuda"):
        return _nccl(store, rank_info, timeout)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined] # its stub calls it otherwise
    options._timeout = timeout
    options._devices = [ProcessGroupGloo.create_device(hostname=rank_info.host)]
    return ProcessGroupGloo(store, rank_info.rank, rank_info.size, options)


def _nccl(store: Store, rank_info: RankInfo, timeout: timedelta) -> Backend:
    from torch._C._distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415 - not in torch for CPUs

    if (index := torch.device(rank_info.device).index) is not None:  # "cuda" alone is the current device
        torch.cuda.set_device(index)
    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    with _environment(_NCCL):
        return ProcessGroupNCCL(store, rank_info.rank, rank_info.size, options)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables inside the block alone: other groups of this process have settings of their own."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_commands(commands: Iterable[str], out: BinaryIO) -> None:
    """Runs commands, one JSON object a line, and answers each on `out`: a line feed, or the bytes received.

    `connect` (`address` of the rendezvous, `rank_info`), `receive` (`total`, `bucket_bytes`, `seconds`), `receipt` (`key`, `good`).
    A first line feed says that the process is ready. Raises the errors of `BroadcastGroup`.
    """
    rendezvous: Rendezvous | None = None
    group: BroadcastGroup | None = None

    def answer(content: memoryview | bytes) -> None:
        out.write(content)
        out.flush()

    answer(b"\n")
    for line in commands:
        command = json.loads(line)
        if command["do"] == "connect":
            if group is not None:
                group.abort()
            rank_info = RankInfo(**command["rank_info"])
            rendezvous = Rendezvous.join(command["address"], rank_info.stall_seconds)
            group = BroadcastGroup(rendezvous, rank_info)
            answer(b"\n")
        elif group is not None and command["do"] == "receive":
            group.receive(answer, command["total"], command["bucket_bytes"], time.monotonic() + command["seconds"])
        elif rendezvous is not None and command["do"] == "receipt":
            rendezvous.leave_receipt(command["key"], command["good"])
            answer(b"\n")


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not print into the answers
    run_commands(sys.stdin, answers)

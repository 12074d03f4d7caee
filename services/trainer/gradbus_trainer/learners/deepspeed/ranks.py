"""The process group of one trainer's ranks. Every wait has a deadline, and nothing is pickled."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d

from gradbus.control.failures import described, is_infrastructure
from gradbus.errors import OutOfMemoryError, RankLostError
from gradbus_kernels.models.loading import is_out_of_memory, memory_advice
from gradbus_trainer.settings import TorchrunRank

_NOTE = "failure"
_NOTE_SECONDS = 5.0


class Ranks:
    """NCCL between GPUs, gloo for everything else. Opened once a process."""

    def __init__(self, torchrun: TorchrunRank, device: str, seconds: float) -> None:
        """Connects to the other ranks at torchrun's address. Raises RankLostError when a rank is missing after `seconds`."""
        self.rank, self.size = torchrun.rank, torchrun.size
        self.device = rank_device(device, torchrun.local_rank)
        on_gpu = self.device.type == "cuda"
        # DeepSpeed takes it as the number of the GPU.
        os.environ["LOCAL_RANK"] = str(torchrun.local_rank if self.device.index is None else self.device.index)
        self._timeout = timedelta(seconds=seconds)
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        if on_gpu:
            torch.cuda.set_device(self.device)
        store = dist.HashStore() if self.size == 1 else None  # type: ignore[attr-defined]
        try:
            dist.init_process_group(backend, rank=self.rank, world_size=self.size, store=store, timeout=self._timeout)
            self._control = dist.new_group(backend="gloo", timeout=self._timeout)
            self._notes = _notes() if self.size > 1 else None
        except RuntimeError as error:
            raise RankLostError(
                f"the {self.size} ranks did not connect within {seconds:.0f} s ({error}); see the log of each rank"
            ) from error

    def set_deadlines(self) -> None:
        """Sets the deadline of every group; those that DeepSpeed makes would wait for half an hour."""
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(self._timeout, group)

    def send(self, content: bytes) -> None:
        """Sends bytes from rank 0 to the others."""
        if self.size > 1:
            dist.broadcast(torch.tensor([len(content)]), 0, group=self._control)
            dist.broadcast(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0, group=self._control)

    def receive(self) -> bytes:
        """Receives the bytes that rank 0 sends."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, 0, group=self._control)
        content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, 0, group=self._control)
        return content.numpy().tobytes()

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Copies rank 0's `tensor` (in host memory) into that of every rank."""
        if self.size > 1:
            dist.broadcast(tensor, 0, group=self._control)

    def of_first(self, value: torch.Tensor | None, shape: torch.Size) -> torch.Tensor:
        """Rank 0's tensor in float32, on this rank's device; the others have none."""
        whole = torch.empty(shape) if value is None else value.to(torch.float32, copy=True).contiguous()
        self.broadcast(whole)
        return whole.to(self.device)

    def sum(self, tensor: torch.Tensor) -> None:
        """In place, over the ranks, on the tensor's device."""
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.SUM)

    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None:
        """In place, over the ranks: the sum of `sums` and the maximum of `largest`."""
        if self.size > 1:
            dist.all_reduce(sums, dist.ReduceOp.SUM, group=self._control)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._control)

    def all_true(self, here: bool) -> bool:
        """Whether `here` is true on every rank."""
        agreed = torch.tensor([int(here)])
        if self.size > 1:
            dist.all_reduce(agreed, dist.ReduceOp.MIN, group=self._control)
        return bool(agreed)

    def note_failure(self, error: Exception) -> None:
        """Tells rank 0 why this rank ends, unless it ends because of another; the first such note counts."""
        if self._notes is not None and (cause := own_failure(error)):
            self._notes.compare_set(_NOTE, "", cause)

    def noted_failure(self) -> str:
        """Why another rank ended, if it failed by itself and could say so; else empty."""
        try:
            return self._notes.get(_NOTE).decode() if self._notes is not None and self._notes.check([_NOTE]) else ""
        except RuntimeError:  # whoever held the notes is gone as well
            return ""

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()


def rank_device(device: str, local_rank: int) -> torch.device:
    """The device of a rank: on GPUs the one that `device` names, `cuda:0` if it gives no number, and for each further rank the next."""
    first = torch.device(device)
    return torch.device("cuda", (first.index or 0) + local_rank) if first.type == "cuda" else torch.device("cpu")


def own_failure(error: Exception) -> str:
    """What failed in this rank itself; empty if infrastructure failed, or another rank that this one waited for."""
    if isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "NCCL")) or is_infrastructure(error):
        return ""
    return described(OutOfMemoryError(memory_advice(error)) if is_out_of_memory(error) else error)


def _notes() -> Store:
    """A connection of its own to the store at torchrun's address: the other may be in use by a thread that waits for a lost rank."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_NOTE_SECONDS), wait_for_workers=False)
    return PrefixStore(f"gradbus/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

"""What goes between the ranks of one trainer. Every wait has a deadline, and nothing is pickled."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradbus.errors import RankLostError
from gradbus_trainer.torchrun import TorchrunRank


class Ranks:
    """A process group: NCCL between GPUs, gloo for all else. Opens once a process."""

    def __init__(self, torchrun: TorchrunRank, device: str, seconds: float) -> None:
        """Meets the other ranks at torchrun's address. Raises RankLostError when one does not come within `seconds`."""
        self.rank, self.size = torchrun.rank, torchrun.size
        on_gpu = device.startswith("cuda")
        self.device = torch.device("cuda", torchrun.local_rank) if on_gpu else torch.device("cpu")
        os.environ.setdefault("LOCAL_RANK", str(torchrun.local_rank))  # DeepSpeed asks for it
        self._timeout = timedelta(seconds=seconds)
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        if on_gpu:
            torch.cuda.set_device(self.device)
        store = dist.HashStore() if self.size == 1 else None  # type: ignore[attr-defined]
        try:
            dist.init_process_group(backend, rank=self.rank, world_size=self.size, store=store, timeout=self._timeout)
            self._control = dist.new_group(backend="gloo", timeout=self._timeout)
        except RuntimeError as error:
            raise RankLostError(f"the {self.size} ranks did not meet in {seconds:.0f} s ({error}); see the log of each rank") from error

    def bound(self) -> None:
        """Gives every group the deadline: those that DeepSpeed makes would wait for half an hour."""
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(self._timeout, group)

    def send(self, content: bytes) -> None:
        """Rank 0 tells the others."""
        if self.size > 1:
            dist.broadcast(torch.tensor([len(content)]), 0, group=self._control)
            dist.broadcast(torch.frombuffer(bytearray(content), dtype=torch.uint8), 0, group=self._control)

    def receive(self) -> bytes:
        """What rank 0 tells."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, 0, group=self._control)
        content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, 0, group=self._control)
        return content.numpy().tobytes()

    def share(self, tensor: torch.Tensor) -> None:
        """Fills `tensor` (in host memory) on every rank with rank 0's."""
        if self.size > 1:
            dist.broadcast(tensor, 0, group=self._control)

    def total(self, sums: torch.Tensor, largest: torch.Tensor) -> None:
        """In place, over the ranks: adds up `sums`, and takes the `largest`."""
        if self.size > 1:
            dist.all_reduce(sums, dist.ReduceOp.SUM, group=self._control)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._control)

    def all_hold(self, here: bool) -> bool:
        """Whether `here` is true on every rank."""
        held = torch.tensor([int(here)])
        if self.size > 1:
            dist.all_reduce(held, dist.ReduceOp.MIN, group=self._control)
        return bool(held)

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()

"""This process's place among the ranks of its trainer, as torchrun tells it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class TorchrunRank:
    """Without torchrun a trainer is one rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the ranks of this machine; the number of its GPU."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TorchrunRank:
        """Reads RANK, WORLD_SIZE and LOCAL_RANK."""
        return cls(*(int(environment.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))))


def end_with_launcher() -> None:
    """Has the kernel kill this rank when torchrun is killed: it runs in a session of its own, which nobody else would end."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def choose_accelerator(device: str) -> None:
    """Tells DeepSpeed, which looks for one when it is imported, what `device` the learner runs on."""
    os.environ.setdefault("DS_ACCELERATOR", device.partition(":")[0])

"""The trainer's environment: its settings, and its rank under torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from gradbus.parent_death import signal_at_parent_death
from gradbus.process import ProcessSettings
from gradbus.spec import DEFAULT_QUEUE


class Settings(ProcessSettings):
    """GRADBUS_* variables of the trainer."""

    weight_store: str = Field("127.0.0.1:50051", description="host:port of the weight store.")
    device: str = Field("cpu", description="Torch device of the learner; of ranks on one machine, the first one's.")
    device_name: str = Field(
        "", description="Name of the device for `rollout.placement`, the same for trainer and rollout; empty: machine and device."
    )
    queue: str = Field(DEFAULT_QUEUE, pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="The queue whose runs this trainer trains.")
    collective_seconds: float = Field(300.0, gt=0.0, description="How long a rank waits for the others before it gives up.")
    trace_steps: float = Field(1.0, ge=0.0, le=1.0, description="Share of steps that are traced, if spans are exported.")
    trace_step_seconds: float = Field(
        1.0, ge=0.0, description="Least time between two traced steps; a step that trains a traced group is traced in any case."
    )
    folder_deltas: bool = Field(
        False,
        description="Whether `weights.transport = delta` sends deltas if object storage is a folder: a network drive may be slow enough.",
    )
    checkpoint_bytes: int = Field(256 << 20, description="Log bytes that force an early checkpoint, so that the buffer can be trimmed.")


@dataclass(frozen=True, slots=True)
class TorchrunRank:
    """The rank of this process among those that torchrun started; without torchrun a trainer is one rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the ranks of this machine; the number of its GPU."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TorchrunRank:
        """Reads RANK, WORLD_SIZE and LOCAL_RANK."""
        return cls(*(int(environment.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))))


def end_with_launcher() -> None:
    """Asks the kernel to kill this rank when torchrun is killed: the rank has a session of its own, which nothing else would end."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal_at_parent_death()


def choose_accelerator(device: str) -> None:
    """Sets DeepSpeed's accelerator to `device`; without this DeepSpeed picks one when it is imported."""
    os.environ.setdefault("DS_ACCELERATOR", device.partition(":")[0])

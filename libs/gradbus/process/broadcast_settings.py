"""Settings of the weight broadcast, for the trainer and the rollout workers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gradbus.v1.broadcast_pb2 import BroadcastConfig


class BroadcastSettings(BaseSettings):
    """`GRADBUS_BROADCAST_*`. The trainer's values hold for all members; `host` and `port` hold for each process alone."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_BROADCAST_", extra="ignore")

    host: str = Field(
        "127.0.0.1", description="Address of this machine that the other members reach; every socket of the broadcast is bound to it."
    )
    port: int = Field(0, ge=0, le=65535, description="Rendezvous port of the trainer; 0: a free one.")
    backend: Literal["gloo", "nccl"] = Field("gloo", description="`nccl` for GPUs.")
    bucket_bytes: int = Field(64 << 20, ge=1, le=1 << 30, description="Size of a bucket; each member holds two.")
    join_seconds: float = Field(2.0, gt=0, le=60, description="Time that workers have to join.")
    stall_seconds: float = Field(5.0, gt=0, description="Time limit to connect, and for one bucket.")
    seconds: float = Field(60.0, gt=0, description="Time limit of the whole broadcast; publishing waits no longer.")

    @property
    def config(self) -> BroadcastConfig:
        """The same settings as the message that members receive."""
        return BroadcastConfig(
            backend=self.backend,
            bucket_bytes=self.bucket_bytes,
            join_seconds=self.join_seconds,
            seconds=self.seconds,
            stall_seconds=self.stall_seconds,
        )

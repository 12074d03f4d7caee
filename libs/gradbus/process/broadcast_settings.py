"""Settings of both ends of a broadcast of weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gradbus.v1.broadcast_pb2 import BroadcastConfig


class BroadcastSettings(BaseSettings):
    """`GRADBUS_BROADCAST_*`. The trainer's decide for all members, `host` and `port` for the process alone."""

    model_config = SettingsConfigDict(env_prefix="GRADBUS_BROADCAST_", extra="ignore")

    host: str = Field("127.0.0.1", description="Address of this machine that the other members reach; all it opens is bound to that.")
    port: int = Field(0, ge=0, le=65535, description="Of the trainer: where members of a new group meet; 0: a free one.")
    backend: Literal["gloo", "nccl"] = Field("gloo", description="`nccl` between GPUs.")
    bucket_bytes: int = Field(64 << 20, ge=1, le=1 << 30, description="Each member keeps two of this size.")
    join_seconds: float = Field(2.0, gt=0, le=60, description="How long the workers have to join.")
    stall_seconds: float = Field(5.0, gt=0, description="How long members may take to connect, and a bucket to pass.")
    seconds: float = Field(60.0, gt=0, description="How long the whole broadcast may take; publishing waits no longer.")

    @property
    def config(self) -> BroadcastConfig:
        """What the members are told."""
        return BroadcastConfig(
            backend=self.backend,
            bucket_bytes=self.bucket_bytes,
            join_seconds=self.join_seconds,
            seconds=self.seconds,
            stall_seconds=self.stall_seconds,
        )

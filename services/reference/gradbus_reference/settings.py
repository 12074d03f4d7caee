"""Settings of the reference service."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings


class ReferenceSettings(ProcessSettings):
    """Memory, device and threads of the reference models."""

    models: int = Field(2, ge=1, le=64, description="Models in memory at once.")
    idle_seconds: float = Field(300.0, gt=0.0, description="A model that nobody has used for so long leaves memory.")
    device: str = Field("cpu", description="cpu or cuda; CUDA_VISIBLE_DEVICES chooses the GPU, for Triton launches on the first.")
    threads: int = Field(1, ge=1, le=256, description="Torch threads: part of what decides bits.")
    micro_batch_tokens: int = Field(8192, ge=1, description="Tokens of one forward pass.")
    waiting_calls: int = Field(256, ge=1, description="Calls that may wait; more are refused.")

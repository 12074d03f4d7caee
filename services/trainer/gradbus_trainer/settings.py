"""Settings of the trainer."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings


class Settings(ProcessSettings):
    """Where the weight store is, and what the learner runs on."""

    weight_store: str = Field("127.0.0.1:50051", description="host:port of the weight store.")
    device: str = Field("cpu", description="Torch device of the learner.")
    collective_seconds: float = Field(300.0, gt=0.0, description="How long a rank waits for the others before it gives up.")
    trace_steps: float = Field(1.0, ge=0.0, le=1.0, description="Share of steps that are traced, where spans are exported.")
    trace_step_seconds: float = Field(
        1.0, ge=0.0, description="Of steps shorter than this, one in so many seconds is traced, and each that trains a traced group."
    )
    checkpoint_bytes: int = Field(256 << 20, description="Log bytes that force an early checkpoint, so that the buffer can be trimmed.")

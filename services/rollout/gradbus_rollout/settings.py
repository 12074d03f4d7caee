"""Settings of a rollout worker."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings


class Settings(ProcessSettings):
    """Addresses of the weight store, the environment and the agent service, the engine's device and the watchdog's limit."""

    weight_store: str = Field("127.0.0.1:50051", description="host:port of the weight store.")
    environment_address: str = Field("127.0.0.1:50054", description="host:port of the environment service.")
    agent: str = Field("127.0.0.1:50055", description="host:port of the agent service.")
    device: str = Field("cpu", description="Torch device of the embedded engine.")
    device_name: str = Field(
        "", description="Name of the device for `rollout.placement`, the same for trainer and rollout; empty: machine and device."
    )
    kept_prefix_mib: int = Field(
        256, ge=0, description="Of keys and values that the embedded engine keeps between the turns of episodes; 0: none."
    )
    trace_texts: bool = Field(
        default=False,
        description="Whether the spans of traced groups carry prompts and answers: whoever reads the traces then reads these too.",
    )
    engine_progress_seconds: float = Field(
        120.0, gt=0, description="How long an engine with work may make no progress; then the worker ends."
    )

"""Settings of the conductor."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings


class Settings(ProcessSettings):
    """Addresses of the services that the conductor calls, tracing, the quota of a run, and retention of finished runs."""

    weight_store: str = Field("127.0.0.1:50051", description="host:port of the weight store.")
    reward: str = Field("127.0.0.1:50052", description="host:port of the reward service.")
    reference: str = Field("127.0.0.1:50053", description="host:port of the reference service.")
    trace_groups: float = Field(0.01, ge=0.0, le=1.0, description="Share of groups that are traced, where spans are exported.")
    run_buffer_bytes: int = Field(1 << 30, ge=1, description="Bytes of the buffer that one run may hold; a run that holds more fails.")
    keep_finished_runs: int = Field(0, ge=0, description="Number of finished runs that are kept; older ones are deleted. 0: all are kept.")
    keep_finished_days: float = Field(0.0, ge=0.0, description="A finished run is deleted after so many days; 0: never.")

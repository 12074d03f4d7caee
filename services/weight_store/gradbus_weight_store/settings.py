"""Settings of the weight store."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings


class WeightStoreSettings(ProcessSettings):
    """The service's address (GRADBUS_LISTEN), when a worker counts as lagging, and how long blobs are kept that no run names."""

    lagging_versions: int = Field(8, ge=1, description="A worker this many versions behind ...")
    lagging_seconds: float = Field(10.0, gt=0.0, description="... that has work and stays so for so long is an alarm.")
    blob_grace_seconds: float = Field(
        86_400.0, ge=0.0, description="A file that no run names is kept for so long, and deleted after up to three times as long; 0: never."
    )

"""Settings of the weight store."""

from __future__ import annotations

from pydantic import Field

from gradbus.process import ProcessSettings


class WeightStoreSettings(ProcessSettings):
    """The service's address (GRADBUS_LISTEN), and when a worker counts as lagging."""

    lagging_versions: int = Field(8, ge=1, description="A worker this many versions behind ...")
    lagging_seconds: float = Field(10.0, gt=0.0, description="... that has work and stays so for so long is an alarm.")

"""Whether a run that this worker leaves is over, or goes on with another worker."""

from __future__ import annotations

from nats.errors import Error as NatsError
from nats.js.errors import APIError

from gradbus.bus import Buckets, Bus
from gradbus.control.runs import FINAL_STATES, RunStatus


async def is_over(bus: Bus, run_id: str) -> bool:
    """Whether the run's end is decided, which is stored before its workers are released. False if the bus is away."""
    try:
        stored = await (await bus.bucket(Buckets.RUNS)).get(f"{run_id}.status")
    except (NatsError, APIError, TimeoutError):
        return False
    if stored is None:
        return True  # the run is deleted
    status = RunStatus.model_validate_json(stored.value)
    return status.ending is not None or status.state in FINAL_STATES

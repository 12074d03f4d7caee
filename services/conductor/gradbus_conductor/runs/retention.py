"""Retention of finished runs: the oldest ones are deleted, as far as the operator wants it."""

from __future__ import annotations

from dataclasses import dataclass

from gradbus.bus import Bucket, Conflict
from gradbus.control.runs import DELETED
from gradbus_conductor.runs.index import RunIndex

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class RunRetention:
    """How many finished runs are kept, and for how long. 0 is no limit."""

    most: int = 0
    days: float = 0.0

    def expired(self, runs: RunIndex, now_unix_ns: int) -> list[str]:
        """Finished runs that are beyond a limit, the one that ended first coming first."""
        if not (self.most or self.days):
            return []
        finished = sorted(runs.names("finished"), key=runs.finished_unix_ns)
        surplus = max(0, len(finished) - self.most) if self.most else 0
        oldest = now_unix_ns - int(self.days * _DAY_NS) if self.days else 0
        return [run_id for at, run_id in enumerate(finished) if at < surplus or runs.finished_unix_ns(run_id) < oldest]


async def request_deletion(bucket: Bucket, run_id: str) -> None:
    """Requests that a finished run is deleted, unless the request of a user comes first. Raises errors of NATS."""
    key = f"{run_id}.desired"
    desired = await bucket.get(key)
    try:
        if desired is None:
            await bucket.create(key, DELETED)
        else:
            await bucket.update(key, DELETED, desired.revision)
    except Conflict:
        return

"""Runs in the key-value bucket `runs`: the spec, the desired state and the conductor's status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gradbus.bus import Bucket, Conflict
from gradbus.control.runs import FINAL_STATES, DesiredState, RunRecord, RunState, RunStatus, read_run
from gradbus.errors import CorruptRecordError, SettingsError
from gradbus.ids import checked_name
from gradbus.telemetry import get_logger
from gradbus_gateway.http.problems import ProblemError, no_such_run, unreadable_run

_log = get_logger(__name__)
Action = Literal["cancel", "pause", "resume"]
_DESIRED: Final[dict[Action, DesiredState]] = {"cancel": "cancelled", "pause": "paused", "resume": "running"}
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its record, its desired state, and its status once the conductor has written one."""

    record: RunRecord
    desired: DesiredState
    status: RunStatus | None

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self.record.run_id

    @property
    def state(self) -> RunState:
        """The state that the conductor reports; before its first report it follows from the desired state."""
        if self.status:
            return self.status.state
        return "cancelling" if self.desired == "cancelled" else "queued"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run whose stored record cannot be read. It is listed, so that it can be repaired."""

    run_id: str
    reason: str
    """What is wrong, and what to do about it."""


class RunStore:
    """Reads and writes the bucket `runs`. Every write is a create or a compare-and-set, so replicas may race."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def create(self, record: RunRecord) -> Run:
        """Stores a run, whose desired state is `running`. If the id exists already, returns the stored run."""
        try:
            await self._bucket.create(f"{record.run_id}.spec", record.to_bytes())
        except Conflict:
            return await self.get(record.run_id)
        return Run(record, "running", None)

    async def find(self, run_id: str) -> Run | None:
        """The run, or None. Raises the problem `unreadable-run`."""
        try:
            checked_name(run_id, "run id")
        except SettingsError:
            return None
        spec, desired, status = await asyncio.gather(*(self._bucket.get(f"{run_id}.{key}") for key in ("spec", "desired", "status")))
        if spec is None:
            return None
        try:
            return Run(*read_run(run_id, spec.value, desired.value if desired else None, status.value if status else None))
        except CorruptRecordError as error:
            raise unreadable_run(str(error)) from None

    async def get(self, run_id: str) -> Run:
        """The run. Raises the problems 404 and `unreadable-run`."""
        run = await self.find(run_id)
        if run is None:
            raise no_such_run(run_id)
        return run

    async def page(self, after: str, limit: int) -> list[Run | UnreadableRun]:
        """Up to `limit` runs older than the id `after`, newest first. Unreadable runs are listed too."""
        async with self._bucket.view("*.*") as view:
            entries = dict(view.entries)
        run_ids = sorted((key.removesuffix(".spec") for key in entries if key.endswith(".spec")), reverse=True)
        run_ids = [run_id for run_id in run_ids if _is_run_id(run_id)]
        selected = [run_id for run_id in run_ids if not after or run_id < after][:limit]
        return [_listed(run_id, entries) for run_id in selected]

    async def request(self, run_id: str, action: Action) -> Run:
        """Sets the desired state of a run. Raises the problem 404, or 409 when the run's state forbids the action."""
        desired = _DESIRED[action]
        value = json.dumps(desired).encode()
        for _ in range(_ATTEMPTS):
            run = await self.get(run_id)
            if run.state == "cancelled" and action == "cancel":
                return run
            if run.is_final or (run.desired == "cancelled" and action != "cancel"):
                raise ProblemError(409, "state-forbids", f"run {run_id} is {run.state}: {action} comes too late; submit a new run instead")
            current = await self._bucket.get(f"{run_id}.desired")
            try:
                if current is None:
                    await self._bucket.create(f"{run_id}.desired", value)
                elif run.desired != desired:
                    await self._bucket.update(f"{run_id}.desired", value, current.revision)
            except Conflict:
                continue
            return await self.get(run_id)
        raise ProblemError(409, "concurrent-change", f"other requests keep changing the desired state of run {run_id}; try again")


def _listed(run_id: str, entries: Mapping[str, bytes]) -> Run | UnreadableRun:
    try:
        return Run(*read_run(run_id, entries[f"{run_id}.spec"], entries.get(f"{run_id}.desired"), entries.get(f"{run_id}.status")))
    except CorruptRecordError as error:
        return UnreadableRun(run_id, str(error))


def _is_run_id(name: str) -> bool:
    try:
        checked_name(name, "run id")
    except SettingsError as error:
        _log.warning("run_key_ignored", key=f"{name}.spec", error=str(error))
        return False
    return True

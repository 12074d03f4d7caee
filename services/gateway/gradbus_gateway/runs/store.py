"""Runs in the key-value bucket: what was asked, what is wanted now, and what the conductor says."""

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
Verb = Literal["cancel", "pause", "resume"]
_WANTED: Final[dict[Verb, DesiredState]] = {"cancel": "cancelled", "pause": "paused", "resume": "running"}
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known of a run."""

    record: RunRecord
    desired: DesiredState
    status: RunStatus | None

    @property
    def run_id(self) -> str:
        """Its id."""
        return self.record.run_id

    @property
    def state(self) -> RunState:
        """The conductor's word; before its first one, what follows from what is wanted."""
        if self.status:
            return self.status.state
        return "cancelling" if self.desired == "cancelled" else "queued"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in FINAL_STATES


@dataclass(frozen=True, slots=True)
class UnreadableRun:
    """A run whose record cannot be read. It stands in the list, so that somebody mends it."""

    run_id: str
    reason: str
    """What is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """An idempotency key: the request it came with and the run it stands for."""

    body: str
    run_id: str


class RunStore:
    """Reads and writes the bucket `runs`. Every write is a create or a compare-and-set, so replicas may race."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def create(self, record: RunRecord) -> Run:
        """Stores a run, which is wanted to run until somebody wishes otherwise; if the id is taken already, the run that has it."""
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
        """Up to `limit` runs older than `after`, newest first. One that cannot be read hides no other."""
        async with self._bucket.view("*.*") as view:
            entries = dict(view.entries)
        known = sorted((key.removesuffix(".spec") for key in entries if key.endswith(".spec")), reverse=True)
        known = [run_id for run_id in known if _is_run_id(run_id)]
        wanted = [run_id for run_id in known if not after or run_id < after][:limit]
        return [_listed(run_id, entries) for run_id in wanted]

    async def wish(self, run_id: str, verb: Verb) -> Run:
        """Sets what is wanted of a run. Raises the problems 404, and 409 when its state forbids it."""
        for _ in range(_ATTEMPTS):
            run = await self.get(run_id)
            if run.state == "cancelled" and verb == "cancel":
                return run
            if run.is_final or (run.desired == "cancelled" and verb != "cancel"):
                raise ProblemError(409, "state-forbids", f"run {run_id} is {run.state}: {verb} comes too late; submit a new run instead")
            current = await self._bucket.get(f"{run_id}.desired")
            try:
                if current is None:
                    await self._bucket.create(f"{run_id}.desired", _json(_WANTED[verb]))
                elif run.desired != _WANTED[verb]:
                    await self._bucket.update(f"{run_id}.desired", _json(_WANTED[verb]), current.revision)
            except Conflict:
                continue
            return await self.get(run_id)
        raise ProblemError(409, "concurrent-change", f"others keep changing what is wanted of run {run_id}; try again")

    async def reservation(self, key: str) -> Reservation | None:
        """What the idempotency key with this hash stands for, or None."""
        entry = await self._bucket.get(f"idempotency.key.{key}")
        return Reservation(**json.loads(entry.value)) if entry else None

    async def reserve(self, key: str, wish: Reservation) -> Reservation:
        """Binds an idempotency key; returns what it is bound to, which an earlier request may have decided."""
        try:
            await self._bucket.create(f"idempotency.key.{key}", _json({"body": wish.body, "run_id": wish.run_id}))
        except Conflict:
            return await self.reservation(key) or wish
        return wish


def _listed(run_id: str, entries: Mapping[str, bytes]) -> Run | UnreadableRun:
    try:
        return Run(*read_run(run_id, entries[f"{run_id}.spec"], entries.get(f"{run_id}.desired"), entries.get(f"{run_id}.status")))
    except CorruptRecordError as error:
        return UnreadableRun(run_id, str(error))


def _is_run_id(name: str) -> bool:
    try:
        checked_name(name, "run id")
    except SettingsError as error:
        _log.warning("run_left_out", key=f"{name}.spec", error=str(error))
        return False
    return True


def _json(value: object) -> bytes:
    return json.dumps(value).encode()

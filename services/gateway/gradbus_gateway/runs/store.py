"""Runs in the key-value bucket `runs`: the spec, the desired state and the conductor's status."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pydantic import ValidationError

from gradbus.bus import Bucket, Conflict, Entry, OwnedKey
from gradbus.control.annotations import ANNOTATIONS, MOST_TAGS, AnnotationChange, Annotations
from gradbus.control.runs import DELETED, FINAL_STATES, DesiredState, RunRecord, RunState, RunStatus, deletion_key, read_run
from gradbus.control.scorers import SCORERS, WANTED_SCORERS, ScorerChanges
from gradbus.errors import CorruptRecordError, SettingsError, first_line
from gradbus.ids import checked_name
from gradbus.spec import MAX_CHANGES, RewardChange, RunSpec
from gradbus_gateway.http.problems import ProblemError, no_such_run, unreadable_run

Action = Literal["cancel", "pause", "resume"]
_DESIRED: Final[dict[Action, DesiredState]] = {"cancel": "cancelled", "pause": "paused", "resume": "running"}
_ATTEMPTS = 5
_MAX_SCORER_BYTES = 2 << 20
"""Of all scorers that a run is given; half of what NATS stores."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its record, its desired state, its status once the conductor has written one, and what users wrote on it."""

    record: RunRecord
    desired: DesiredState
    status: RunStatus | None
    annotations: Annotations = field(default_factory=Annotations)

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
    """Reads and writes the bucket `runs`. Every write is a create or a compare-and-set, so replicas may race.

    A run whose desired state is `deleted` does not exist for users: the conductor removes what is left of it.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def create(self, record: RunRecord) -> Run:
        """Stores a run, whose desired state is `running`. If the id exists already, returns the stored run.

        Raises the problem 409 if that run is being deleted.
        """
        try:
            await self._bucket.create(f"{record.run_id}.spec", record.to_bytes())
        except Conflict:
            if (run := await self.find(record.run_id)) is None:
                detail = "the run of this Idempotency-Key is being deleted; submit the run with a new key"
                raise ProblemError(409, "run-deleted", detail) from None
            return run
        return Run(record, "running", None)

    async def withdraw(self, run_id: str) -> None:
        """Removes a run that was created a moment ago: under the id of one that is being deleted, or with a model that is gone."""
        await self._bucket.purge(f"{run_id}.spec")

    async def find(self, run_id: str) -> Run | None:
        """The run, or None. Raises the problem `unreadable-run`."""
        stored = await self._read(run_id)
        return None if stored is None or stored.is_deleted else stored.run(run_id)

    async def get(self, run_id: str) -> Run:
        """The run. Raises the problems 404 and `unreadable-run`."""
        run = await self.find(run_id)
        if run is None:
            raise no_such_run(run_id)
        return run

    async def request(self, run_id: str, action: Action) -> Run:
        """Sets the desired state of a run. Raises the problem 404, or 409 when the run's state forbids the action."""
        desired = _DESIRED[action]
        for _ in range(_ATTEMPTS):
            stored = await self._read(run_id)
            if stored is None or stored.is_deleted:
                raise no_such_run(run_id)
            run = stored.run(run_id)
            if run.state == "cancelled" and action == "cancel":
                return run
            if run.is_final or (run.desired == "cancelled" and action != "cancel"):
                advice = (
                    "there is nothing to cancel; DELETE removes it"
                    if action == "cancel"
                    else f"{action} comes too late; submit a new run instead"
                )
                raise ProblemError(409, "state-forbids", f"run {run_id} is {run.state}: {advice}")
            if await self._set_desired(run_id, desired, stored):
                return replace(run, desired=desired)
        raise _concurrent_change(run_id)

    async def scorers(self, run_id: str) -> tuple[ScorerChanges, ScorerChanges]:
        """The scorers that the run was given since its submission: those asked for, and those decided. Raises `unreadable-run`."""
        wanted, decided = await asyncio.gather(*(OwnedKey(self._bucket, f"{run_id}.{key}").read() for key in (WANTED_SCORERS, SCORERS)))
        return _scorers(wanted, run_id), _scorers(decided, run_id)

    async def changed_spec(self, run: Run) -> RunSpec:
        """The run's spec with the scorers that it was given since its submission. Raises `unreadable-run`."""
        _, decided = await self.scorers(run.run_id)
        return decided.applied(run.record.spec)

    async def change_scorer(self, run_id: str, change: RewardChange) -> None:
        """Asks for a scorer from now on; no error if it is the one that was asked for last.

        Raises the problems 404 and `unreadable-run`, and 409 for a run that ends or was given too many scorers.
        """
        key = OwnedKey(self._bucket, f"{run_id}.{WANTED_SCORERS}")
        for _ in range(_ATTEMPTS):
            run, stored = await self.get(run_id), await key.read()
            if run.is_final or run.desired == "cancelled":
                detail = f"run {run_id} is {run.state}: its groups are judged; submit a new run instead"
                raise ProblemError(409, "state-forbids", detail)
            wanted = _scorers(stored, run_id)
            if wanted.changes and wanted.changes[-1] == change:
                return
            value = wanted.added(change).to_bytes()
            if len(wanted.changes) + len(run.record.spec.reward.changes) >= MAX_CHANGES or len(value) > _MAX_SCORER_BYTES:
                raise ProblemError(409, "too-many-scorers", f"run {run_id} has had too many scorers; fork it with the new one instead")
            with contextlib.suppress(Conflict):
                await self._replace(run_id, key, value)
                return
        raise _concurrent_change(run_id)

    async def annotate(self, run_id: str, change: AnnotationChange) -> Run:
        """Changes the tags and the note of a run, in whatever state it is.

        Raises the problems 404 and `unreadable-run`, and 409 for a run that would have too many tags.
        """
        key = OwnedKey(self._bucket, f"{run_id}.{ANNOTATIONS}")
        for _ in range(_ATTEMPTS):
            run, stored = await self.get(run_id), await key.read()
            annotations = read_annotations(run_id, stored).changed(change)
            if len(annotations.tags) > MOST_TAGS:
                raise ProblemError(
                    409, "too-many-tags", f"run {run_id} would have more than {MOST_TAGS} tags; remove some with `remove_tags`"
                )
            with contextlib.suppress(Conflict):
                await self._replace(run_id, key, annotations.to_bytes())
                return replace(run, annotations=annotations)
        raise _concurrent_change(run_id)

    async def delete(self, run_id: str) -> None:
        """Requests that a finished run is deleted; no error if that was requested before, for a day after it is gone.

        Raises the problem 404, and 409 while the run has not ended.
        """
        for _ in range(_ATTEMPTS):
            stored = await self._read(run_id)
            if stored is None:
                await self._check_deleted(run_id)
                return
            if stored.is_deleted:
                return
            run = stored.run(run_id)
            if not run.is_final:
                raise ProblemError(409, "state-forbids", f"run {run_id} is {run.state}; cancel it, and delete it once it has ended")
            if await self._set_desired(run_id, "deleted", stored):
                return
        raise _concurrent_change(run_id)

    async def _read(self, run_id: str) -> _Stored | None:
        """The keys of a run; None if there is neither a spec nor a deletion in progress."""
        try:
            checked_name(run_id, "run id")
        except SettingsError:
            return None
        stored = _Stored(
            *await asyncio.gather(*(self._bucket.get(f"{run_id}.{key}") for key in ("spec", "desired", "status", ANNOTATIONS)))
        )
        return stored if stored.spec or stored.is_deleted else None

    async def _check_deleted(self, run_id: str) -> None:
        """Raises the problem 404 unless there was a run of this id, which has been deleted."""
        try:
            key = deletion_key(checked_name(run_id, "run id"))
        except SettingsError:
            raise no_such_run(run_id) from None
        if await self._bucket.get(key) is None:
            raise no_such_run(run_id)

    async def _replace(self, run_id: str, key: OwnedKey, value: bytes) -> None:
        """Writes a key of a run. Raises Conflict, and the problem 404 if the run was deleted since it was read.

        Then its conductor may have removed its keys before this one was written, and would not look again.
        """
        await key.replace(value)
        stored = await self._read(run_id)
        if stored is None or stored.is_deleted:
            with contextlib.suppress(Conflict):  # who wrote it since looks too
                await self._bucket.purge(key.key, key.revision)
            raise no_such_run(run_id)

    async def _set_desired(self, run_id: str, desired: DesiredState, stored: _Stored) -> bool:
        """False if another request changed it since it was read. Raises the problem 404 if the run was deleted since."""
        value = json.dumps(desired).encode()
        if stored.desired is not None and stored.desired.value == value:
            return True
        key = OwnedKey(self._bucket, f"{run_id}.desired")
        key.revision = stored.desired.revision if stored.desired else None
        try:
            await (key.replace(value) if desired == "deleted" else self._replace(run_id, key, value))
        except Conflict:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Stored:
    """The keys of one run."""

    spec: Entry | None
    desired: Entry | None
    status: Entry | None
    annotations: Entry | None

    @property
    def is_deleted(self) -> bool:
        return self.desired is not None and self.desired.value == DELETED

    def run(self, run_id: str) -> Run:
        """Raises the problems 404 and `unreadable-run`."""
        if self.spec is None:
            raise no_such_run(run_id)
        desired, status, annotations = (entry.value if entry else None for entry in (self.desired, self.status, self.annotations))
        try:
            return Run(*read_run(run_id, self.spec.value, desired, status), read_annotations(run_id, annotations))
        except CorruptRecordError as error:
            raise unreadable_run(str(error)) from None


def read_annotations(run_id: str, stored: bytes | None) -> Annotations:
    """Raises CorruptRecordError."""
    try:
        return Annotations.parse(stored)
    except ValidationError as error:
        advice = f"restore the key {run_id}.{ANNOTATIONS} in the bucket `runs`, or delete it"
        raise CorruptRecordError(f"the tags and the note of run {run_id} cannot be read ({first_line(error)}); {advice}") from None


def _scorers(stored: bytes | None, run_id: str) -> ScorerChanges:
    """Raises the problem `unreadable-run`."""
    try:
        return ScorerChanges.parse(stored)
    except ValidationError as error:
        advice = f"restore the keys {run_id}.{WANTED_SCORERS} and {run_id}.{SCORERS} in the bucket `runs`"
        raise unreadable_run(f"the scorers of run {run_id} cannot be read ({first_line(error)}); {advice}") from None


def _concurrent_change(run_id: str) -> ProblemError:
    return ProblemError(409, "concurrent-change", f"other requests keep changing the desired state of run {run_id}; try again")

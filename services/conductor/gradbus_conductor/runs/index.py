"""The bucket `runs`, indexed: what each run needs of a conductor. A run with an unreadable key blocks no other run."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from gradbus.bus import View
from gradbus.control.runs import FINAL_STATES, DesiredState, RunState, RunStatus, read_run
from gradbus.control.scorers import WANTED_SCORERS
from gradbus.errors import CorruptRecordError
from gradbus.spec import DEFAULT_QUEUE
from gradbus_conductor.runs.turns import TrainerTurns

Place = Literal["active", "queue", "ending", "unsettled", "idle", "finished", "deleted"]
_DESIRED: Final = TypeAdapter[DesiredState](DesiredState)
_Value = TypeVar("_Value")
_WAITING_STATES: Final = frozenset({None, "queued", "paused"})
_NO_KEY: Final = "-"
"""Stands for the API key of a run that has none."""


class _Shown(NamedTuple):
    """What the index keeps of a run's status."""

    state: RunState | None = None
    is_decided: bool = False
    """Whether it is decided how the run ends."""
    has_begun: bool = False
    finished_unix_ns: int = 0
    step: int = -1
    yielded_unix_ns: int = 0
    is_readable: bool = True


class _Submission(NamedTuple):
    """What the index keeps of a run's record."""

    key_id: str = _NO_KEY
    queue: str = DEFAULT_QUEUE


class RunIndex:
    """Every run in one place, kept as keys change: what a waiting run costs does not grow with the number of runs.

    - `active`: in progress, or it is decided how it ends: a conductor drives it.
    - `queue`: it waits for a trainer, in the order of `upcoming`. Runs whose status cannot be read stand here too.
    - `ending`: cancelled while it was paused or queued, after it had begun: a conductor must drive it to its end.
    - `unsettled`: its status does not show yet that it was paused, or that it was cancelled before it began.
    - `idle`: paused without a trainer.
    - `finished`: over. `deleted`: a user or retention wants it deleted; its records may be partly gone.
    """

    def __init__(self, runs: View) -> None:
        self._runs = runs
        self._desired: dict[str, DesiredState] = {}
        """Of the runs for which a user requested a state."""
        self._shown: dict[str, _Shown] = {}
        self._places: dict[str, Place] = {}
        self._names: dict[Place, list[str]] = {place: [] for place in get_args(Place)}
        """Oldest first: run ids sort by time of creation."""
        self._reasons: dict[str, str] = {}
        """Why a run cannot be read, or empty. Only of runs that were asked about: to parse every spec would be most of the work."""
        self._turns: dict[str, TrainerTurns] = {}
        """By queue, of the queues in which a run has waited."""
        self._served: dict[str, int] = {}
        """When each API key last got a trainer, of any queue, in nanoseconds."""
        self._submissions: dict[str, _Submission] = {}
        """Of the runs that were asked about."""
        runs.listen(self._update)

    async def catch_up(self) -> None:
        """Returns once the index shows every write that NATS stored before the call. Raises an error of NATS, or TimeoutError."""
        await self._runs.catch_up()

    def state(self, run_id: str) -> RunState | None:
        """The state in the run's status; None if there is no status or it cannot be read."""
        return self._shown.get(run_id, _Shown()).state

    def finished_unix_ns(self, run_id: str) -> int:
        """When the run ended; 0 if it has not."""
        return self._shown.get(run_id, _Shown()).finished_unix_ns

    def step(self, run_id: str) -> int:
        """The step that the run's status shows; -1 if there is no status or it cannot be read."""
        return self._shown.get(run_id, _Shown()).step

    def desired(self, run_id: str) -> DesiredState:
        """The state that the user requests."""
        return self._desired.get(run_id, "running")

    def wanted_scorers(self, run_id: str) -> bytes | None:
        """The scorers that the user asked for since the run was submitted, as stored."""
        return self._runs.get(f"{run_id}.{WANTED_SCORERS}")

    def place(self, run_id: str) -> Place | None:
        """What the run needs; None for a run without a spec."""
        return self._places.get(run_id)

    def names(self, place: Place) -> Sequence[str]:
        """The runs in a place, oldest first, as of now: it changes with every change of a key."""
        return self._names[place]

    def key_of(self, run_id: str) -> str:
        """The API key that submitted the run; a dash if there is none, or if the spec cannot be read."""
        return self._submission(run_id).key_id

    def queue_of(self, run_id: str) -> str:
        """The queue in which the run waits for a trainer."""
        return self._submission(run_id).queue

    def upcoming(self, with_trainers: Collection[str], queue: str) -> Iterator[str]:
        """Readable runs of a queue that wait for a trainer, in the order of their turns. Valid until the caller waits for something.

        `with_trainers`: the runs that have a live trainer.
        """
        held = Counter(self.key_of(name) for name in with_trainers if self.queue_of(name) == queue)
        return self._turns_of(queue).upcoming(held, lambda name: name not in with_trainers and not self.unreadable_reason(name))

    def to_drive(self, most_waiting: int, with_workers: Collection[str], with_trainers: Collection[str] = ()) -> list[str]:
        """Readable runs that need a conductor now: those in progress or with workers, and the first `most_waiting` of the others.

        Each driven run has a lease that is renewed all the time: for a queue of a thousand, renewals would be most of the load.
        """
        kept = sorted(name for name in with_workers if self._places.get(name) in {"queue", "ending", "unsettled", "idle"})
        needed = [name for name in (*self._names["active"], *kept) if not self.unreadable_reason(name)]
        ending = (name for name in self._names["ending"] if not self.unreadable_reason(name))
        for waiting in (ending, *(self.upcoming(with_trainers, queue) for queue in self._turns)):
            needed += islice((name for name in waiting if name not in with_workers), most_waiting)
        return needed

    def unreadable(self) -> dict[str, str]:
        """Runs near the head of the queue or in progress that cannot be read, each with the reason."""
        return {name: reason for name, reason in self._reasons.items() if reason}

    def unreadable_reason(self, run_id: str) -> str:
        """Why the run's keys cannot be read, and what to do; empty if they can, or if the run is unknown."""
        if run_id not in self._reasons:
            self._reasons[run_id] = self._read_reason(run_id)
        return self._reasons[run_id]

    def _read_reason(self, run_id: str) -> str:
        spec = self._runs.get(f"{run_id}.spec")
        try:
            if spec is not None:
                read_run(run_id, spec, self._runs.get(f"{run_id}.desired"), self._runs.get(f"{run_id}.status"))
        except CorruptRecordError as error:
            return str(error)
        return ""

    def _update(self, key: str) -> None:
        run_id, _, kind = key.rpartition(".")
        value = self._runs.get(key)
        if kind == "desired":
            _keep(self._desired, run_id, _desired(value))
        elif kind == "status":
            _keep(self._shown, run_id, _shown(value))
        elif kind == "spec":
            self._submissions.pop(run_id, None)
        elif kind == "served":
            self._served[run_id] = _unix_ns(value)  # the key of a user, not of a run
            for turns in self._turns.values():
                turns.serve(run_id, self._served[run_id])
            return
        else:
            return
        # A run that could be read, and whose new status can be, need not be read again: its spec is long, its status changes all the time.
        if not (kind == "status" and self._reasons.get(run_id) == "" and self._shown.get(run_id, _Shown()).is_readable):
            self._reasons.pop(run_id, None)
        self._move(run_id, self._place_of(run_id))

    def _place_of(self, run_id: str) -> Place | None:
        shown, desired = self._shown.get(run_id, _Shown()), self.desired(run_id)
        if desired == "deleted":
            return "deleted"
        if self._runs.get(f"{run_id}.spec") is None:
            return None
        if shown.state in FINAL_STATES:
            return "finished"
        if shown.is_decided or shown.state not in _WAITING_STATES:
            return "active"
        return _waiting_place(shown, desired)

    def _move(self, run_id: str, place: Place | None) -> None:
        before = self._places.pop(run_id, None)
        if before is not None and before != place:
            names = self._names[before]
            del names[bisect_left(names, run_id)]
        if place is not None:
            self._places[run_id] = place
            if before != place:
                insort(self._names[place], run_id)
        if place == "queue":
            yielded = self._shown.get(run_id, _Shown()).yielded_unix_ns
            self._turns_of(self.queue_of(run_id)).add(run_id, self.key_of(run_id), yielded)
        else:
            for turns in self._turns.values():
                turns.remove(run_id)

    def _turns_of(self, queue: str) -> TrainerTurns:
        if queue not in self._turns:
            self._turns[queue] = turns = TrainerTurns()
            for key, unix_ns in self._served.items():
                turns.serve(key, unix_ns)
        return self._turns[queue]

    def _submission(self, run_id: str) -> _Submission:
        if run_id not in self._submissions:
            self._submissions[run_id] = _submission(self._runs.get(f"{run_id}.spec"))
        return self._submissions[run_id]


def _waiting_place(shown: _Shown, desired: DesiredState) -> Place:
    if desired == "cancelled" and shown.is_readable:
        return "ending" if shown.has_begun else "unsettled"
    if desired == "paused" and shown.is_readable:
        return "idle" if shown.state == "paused" else "unsettled"
    return "queue"


def _keep(values: dict[str, _Value], name: str, value: _Value | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


def _desired(value: bytes | None) -> DesiredState | None:
    try:
        return _DESIRED.validate_json(value) if value else None
    except ValidationError:
        return None


def _shown(value: bytes | None) -> _Shown | None:
    if value is None:
        return None
    try:
        status = RunStatus.model_validate_json(value)
    except ValidationError:
        return _Shown(is_readable=False)
    return _Shown(
        status.state, status.ending is not None, status.has_begun, status.finished_unix_ns, status.progress.step, status.yielded_unix_ns
    )


def _submission(spec: bytes | None) -> _Submission:
    """Two fields of the record alone: to validate the spec of each waiting run would be most of the work."""
    try:
        record = json.loads(spec or b"{}")
        return _Submission(str(record["key_id"]) or _NO_KEY, str(record.get("spec", {}).get("queue", DEFAULT_QUEUE)))
    except (ValueError, LookupError, TypeError, AttributeError):
        return _Submission()


def _unix_ns(value: bytes | None) -> int:
    try:
        return int(value or 0)
    except ValueError:
        return 0

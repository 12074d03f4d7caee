"""From which group on a scorer judges that a user gives a live run."""

from __future__ import annotations

from pydantic import ValidationError

from gradbus.bus import Bucket, EventLog, OwnedKey
from gradbus.control.runs import RunRecord
from gradbus.control.scorers import SCORERS, ScorerChanges
from gradbus.errors import CorruptRecordError, first_line
from gradbus.spec import RewardChange
from gradbus.telemetry import get_logger

_log = get_logger(__name__)


class ScorerSchedule:
    """Decides from which group on a new scorer judges, once and for all.

    The group is one that nobody has dispatched, so no sample was judged by another scorer, and whoever continues the run judges by the
    same one. The decision is stored before the group is dispatched.
    """

    def __init__(self, runs_bucket: Bucket, record: RunRecord, events: EventLog) -> None:
        self._record = record
        self._events = events
        self._stored = OwnedKey(runs_bucket, f"{record.run_id}.{SCORERS}")
        self._decided = ScorerChanges()
        self._seen: bytes | None = None
        """The wanted changes that were last looked at."""

    async def recover(self) -> tuple[RewardChange, ...]:
        """The decisions of earlier conductors, which can make no more from then on. Raises FencedError and CorruptRecordError."""
        try:
            self._decided = ScorerChanges.parse(await self._stored.read())
        except ValidationError as error:
            advice = "restore its value, or delete it and change the scorer again"
            raise CorruptRecordError(
                f"the key {self._stored.key} in the bucket `runs` cannot be read ({first_line(error)}); {advice}"
            ) from None
        await self._stored.write(self._decided.to_bytes())
        return self._decided.changes

    def is_new(self, wanted: bytes | None) -> bool:
        """Whether `decide` has not seen these wanted changes."""
        return wanted != self._seen

    async def decide(self, wanted: bytes | None, first: int, version: int) -> tuple[RewardChange, ...]:
        """The wanted changes that this call decides.

        Groups before `first`, and held-out rows of versions before `version`, may be judged already. Raises FencedError.
        """
        self._seen, before = wanted, self._decided
        decided = before
        for change in self._parsed(wanted).beyond(before):
            group = self._next_free(max(first, change.from_group), decided)
            # Where filtered groups take no place in a step, indexes say nothing about steps.
            of_rows = None if self._record.spec.schedule.has_fixed_steps else version
            decided = decided.added(change.model_copy(update={"from_group": group, "from_version": of_rows}))
        if decided != before:
            await self._stored.write(decided.to_bytes())
        self._decided = decided
        new = decided.beyond(before)
        for change in new:
            self._report(change)
        return new

    def _parsed(self, wanted: bytes | None) -> ScorerChanges:
        """What users want; nothing new if a newer release wrote it, for the run goes on with the scorer that it has."""
        try:
            return ScorerChanges.parse(wanted)
        except ValidationError as error:
            _log.error("scorer_unreadable", run_id=self._record.run_id, error=first_line(error))
            return self._decided

    def _next_free(self, group: int, decided: ScorerChanges) -> int:
        """The first group from this one on with which no other scorer begins."""
        taken = {change.from_group for change in decided.applied(self._record.spec).reward.changes}
        while group in taken:
            group += 1
        return group

    def _report(self, change: RewardChange) -> None:
        data = {"from_group": change.from_group, "scorer": change.name}
        _log.info("scorer_changed", run_id=self._record.run_id, **data)
        key = f"scorer:{change.from_group}"
        self._events.emit("scorer", f"from group {change.from_group} on, {change.name} judges", data, key=key)

"""Whether a run finds anything to learn from. A failure is not a reward of 0, and a run of failures is no success."""

from __future__ import annotations

from dataclasses import dataclass

from gradbus.control.runs import RunState
from gradbus.experience.archive import ArchiveReader
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_FILTERED, VERDICT_TRAIN, LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK

_BARREN_STEPS = 8
_BARREN_GROUPS = 1024
_HASTE = "raise schedule.group_deadline_seconds, or see why rollouts or the scorer take so long"
_ADVICE = "see to the scorer, or choose rows that the policy solves sometimes"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends."""

    state: RunState
    reason: str = ""


class LearningSignal:
    """Counts filtered groups in a row. `fixed_lag` gives them their slots; a `free` run would sample for ever."""

    def __init__(self, spec: RunSpec) -> None:
        self._size = spec.schedule.groups_per_step
        self._bound = max(_BARREN_GROUPS, _BARREN_STEPS * self._size) if spec.schedule.mode == "free" else 0
        self._lean = 0
        self._late = 0
        self._why = ""

    def clear(self) -> None:
        """Before the log is read again."""
        self._lean = self._late = 0

    def add(self, entry: LogEntry) -> None:
        """One more entry of the log."""
        self._late = self._late + 1 if entry.verdict == VERDICT_DROPPED and entry.reason == "deadline" else 0
        if entry.verdict == VERDICT_TRAIN:
            self._lean = 0
        elif entry.verdict == VERDICT_FILTERED:
            self._lean += 1
            self._why = _unjudged(entry) or entry.reason

    @property
    def warning(self) -> str:
        """What the user should know while the run goes on: empty if some group of the last step's worth could be trained."""
        if self._late >= self._size:
            return f"none of the last {self._late} groups was ready in time; {_HASTE}"
        return f"none of the last {self._lean} groups could be trained: {self._why}; {_ADVICE}" if self._lean >= self._size else ""

    @property
    def no_signal(self) -> bool:
        """Whether a `free` run should end, for it fills its log without coming to a step."""
        return bool(self._bound) and self._lean >= self._bound


async def ending_of(archive: ArchiveReader, *, learned: bool) -> Ending:
    """How a run that has taken all its steps ends. What is archived decides, not what this process has seen."""
    if learned:
        return Ending("succeeded")
    why = ""
    async for entry in archive.entries():
        if any(reward.status == REWARD_STATUS_OK for reward in entry.rewards):
            return Ending("succeeded", f"nothing was learned: no group had two samples with different rewards; {_ADVICE}")
        why = why or _unjudged(entry)
    return Ending("failed", f"no sample could be judged: {why}; see to the scorer or the data, and submit the run again")


def _unjudged(entry: LogEntry) -> str:
    return next((reward.reason for reward in entry.rewards if reward.status != REWARD_STATUS_OK), "")

"""Whether the rewards of a run carry a learning signal. A failed call is not a reward of 0, and a run of failures is no success."""

from __future__ import annotations

from collections.abc import Sequence

from gradbus.experience.archive import ArchiveReader
from gradbus.spec import RunSpec
from gradbus.v1.group_pb2 import VERDICT_DROPPED, VERDICT_FILTERED, VERDICT_TRAIN, LogEntry
from gradbus.v1.reward_pb2 import REWARD_STATUS_OK, SampleReward
from gradbus_conductor.run.context import Ending

_NO_SIGNAL_STEPS = 8
_FIRST_NO_SIGNAL_GROUPS = 256
"""Of a `free` run that has not found a group to train yet. Where one group in 20 can be trained, so many in a row teach nothing in one
of 500,000 runs; where one in 50 can, in one of 180. Where one in 100 can, in one of 13, and each step would take 100 times its groups."""
_NO_SIGNAL_GROUPS = 1024
"""Of one that has: its rewards can differ, and a long run meets the same chance again after every group."""
_MIN_UNJUDGED_GROUPS = 64
_MASKED_GROUPS = 64
"""Least groups of a share of masked samples: few episodes fail together by chance, or for a moment."""
_DEADLINE_ADVICE = "raise schedule.group_deadline_seconds, or find out why rollouts or the scorer take so long"
_REWARD_ADVICE = "check the scorer, or choose rows that the policy solves sometimes"
_LENGTH_ADVICE = 'raise rollout.max_new_tokens, or set algorithm.truncated = "keep"'
"""Where no scorer is asked: there a sample is left out only because it was cut off."""


class MaskedShare:
    """Samples without a reward in blocks of groups with consecutive indexes: the order of the log is not the same in every run."""

    def __init__(self, spec: RunSpec) -> None:
        self._most = 1.0 if spec.environment is None else spec.environment.max_masked
        self._size = max(_MASKED_GROUPS, spec.schedule.groups_per_step)
        self._blocks: dict[int, list[Sequence[SampleReward]]] = {}
        """The rewards of each group of the blocks that are not whole."""
        self.fault = ""
        """Why the run should fail; empty if it should not."""

    def clear(self) -> None:
        """Starts anew. A block of which a part is not read again is never whole."""
        self._blocks.clear()
        self.fault = ""

    def add(self, entry: LogEntry) -> None:
        """Counts one entry of the log."""
        if self._most == 1.0:
            return
        number = entry.index // self._size
        block = self._blocks.setdefault(number, [])
        block.append(entry.rewards)
        if len(block) < self._size:
            return
        rewards = [reward for group in self._blocks.pop(number) for reward in group]
        masked = [reward.reason for reward in rewards if reward.status != REWARD_STATUS_OK]
        if len(masked) > self._most * len(rewards):
            self.fault = (
                f"{len(masked)} of the {len(rewards)} samples of {self._size} groups have no reward, more than environment.max_masked "
                f"({self._most:g}) allows: {masked[-1]}; correct the environment"
            )


class LearningSignal:
    """Counts groups in a row that teach nothing. In `fixed_lag` a step takes a bounded number; a `free` run would sample without end."""

    def __init__(self, spec: RunSpec) -> None:
        self._size = spec.schedule.groups_per_step
        self._is_free = spec.schedule.mode == "free"
        self._first_groups = max(_MIN_UNJUDGED_GROUPS, _NO_SIGNAL_STEPS * self._size)
        self._unjudged: set[int] = set()
        """Of the first groups, those without a sample that was scored. By index: the order of the log is not the same in every run."""
        self._filtered = 0
        self._late = 0
        self._has_trained = False
        """Whether a group could be trained, at any time."""
        self._reason = ""
        self._masked = MaskedShare(spec)

    def clear(self, *, has_trained: bool = False) -> None:
        """Starts anew, before the log is read again. `has_trained`: a checkpoint covers groups that could be trained."""
        self._filtered = self._late = 0
        self._has_trained = has_trained
        self._unjudged.clear()
        self._masked.clear()

    def add(self, entry: LogEntry) -> None:
        """Counts one entry of the log."""
        self._masked.add(entry)
        self._late = self._late + 1 if entry.verdict == VERDICT_DROPPED and entry.reason == "deadline" else 0
        if entry.verdict == VERDICT_TRAIN:
            self._filtered = 0
            self._has_trained = True
        elif entry.verdict == VERDICT_FILTERED:
            self._filtered += 1
            if entry.index < self._first_groups and entry.rewards and not _is_judged(entry):
                self._unjudged.add(entry.index)
            self._reason = f"{_scorer_error(entry) or entry.reason}; {_advice(entry)}"

    @property
    def warning(self) -> str:
        """Why nothing is learned at present. Empty if any of the last `groups_per_step` groups was trainable."""
        if self._masked.fault:
            return self._masked.fault
        if self._late >= self._size:
            return f"none of the last {self._late} groups was ready in time; {_DEADLINE_ADVICE}"
        if self._filtered >= self._size:
            return f"none of the last {self._filtered} groups could be trained: {self._reason}"
        return ""

    @property
    def no_signal(self) -> bool:
        """Whether the run should fail: no sample can be scored, too many cannot, or a `free` run never completes a step."""
        groups = _NO_SIGNAL_GROUPS if self._has_trained else _FIRST_NO_SIGNAL_GROUPS
        is_endless = self._is_free and self._filtered >= max(groups, _NO_SIGNAL_STEPS * self._size)
        return bool(self._masked.fault) or is_endless or len(self._unjudged) == self._first_groups


async def ending_of(archive: ArchiveReader, *, learned: bool) -> Ending:
    """How a run ends that has taken all its steps. The archive decides, because this process may not have seen all entries."""
    if learned:
        return Ending("succeeded")
    error = ""
    async for entry in archive.entries():
        if _is_judged(entry) or not entry.rewards:
            example = f"for example group {entry.index}: {entry.reason or 'it has no token to train'}"
            return Ending("succeeded", f"nothing was learned: no group could be trained, {example}; {_advice(entry)}")
        error = error or _scorer_error(entry)
    return Ending("failed", f"no sample could be judged: {error}; check the scorer or the data, and submit the run again")


def _is_judged(entry: LogEntry) -> bool:
    return any(reward.status == REWARD_STATUS_OK for reward in entry.rewards)


def _advice(entry: LogEntry) -> str:
    return _REWARD_ADVICE if entry.rewards else _LENGTH_ADVICE


def _scorer_error(entry: LogEntry) -> str:
    return next((reward.reason for reward in entry.rewards if reward.status != REWARD_STATUS_OK), "")

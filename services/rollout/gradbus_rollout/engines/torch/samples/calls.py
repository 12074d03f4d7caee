"""The calls under way and their samples, from `generate` to the completions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache

from gradbus.telemetry import Interval
from gradbus_rollout.engines.base import Completion, GroupCompletion, PromptGroup, TokenSpan


class GenerateCall:
    """One `generate` call."""

    def __init__(self, groups: Sequence[PromptGroup]) -> None:
        self.groups = groups
        self.future: Future[list[GroupCompletion]] = Future()
        self._done: list[dict[int, Completion]] = [{} for _ in groups]
        self.prefills: list[Interval | None] = [None for _ in groups]
        """When each group's prompt was computed."""
        self._pending = sum(len(group.seeds) for group in groups)

    def finish(self, group: int, n: int, completion: Completion) -> bool:
        """Add one sample's completion. True when it was the last: the caller then has the results."""
        self._done[group][n] = completion
        self._pending -= 1
        if self._pending:
            return False
        results = [
            GroupCompletion(group.key, tuple(done[n] for n in range(len(done))), prefill)
            for group, done, prefill in zip(self.groups, self._done, self.prefills, strict=True)
        ]
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(results)
        return True


@dataclass(eq=False, slots=True)
class RunningSample:
    """One sample, from the prefill of its prompt to its end."""

    call: GenerateCall
    group: int
    n: int
    lane: int
    """Prefill lane with its prompt's keys and values and its first token, until it is admitted."""
    began: int = 0
    """When it took its slot, in nanoseconds since 1970."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version) of each span."""

    @property
    def prompt_group(self) -> PromptGroup:
        """The group that it belongs to."""
        return self.call.groups[self.group]

    def begin_span(self, start: int, version: int) -> None:
        """Tokens from `start` on come from `version`, which may be the same as before, loaded again."""
        if self.starts and self.starts[-1][0] == start:
            self.starts.pop()  # no token was drawn from that version
        if not self.starts or self.starts[-1][1] != version:
            self.starts.append((start, version))

    def spans(self, length: int) -> tuple[TokenSpan, ...]:
        """The spans of the sample, ended at `length` tokens."""
        if len(self.starts) == 1:
            return _whole(length, self.starts[0][1])
        ends = [start for start, _ in self.starts[1:]] + [length]
        return tuple(TokenSpan(start, end, version) for (start, version), end in zip(self.starts, ends, strict=True))


@lru_cache(maxsize=4096)
def _whole(length: int, version: int) -> tuple[TokenSpan, ...]:
    """The spans of a sample of one version, which is the usual case; shared by all of the same length."""
    return (TokenSpan(0, length, version),)

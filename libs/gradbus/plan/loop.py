"""The loop of a run, simulated: the schedule's own rules and the lengths of real responses, with constant times in the place of the work.

Step s trains groups that version max(0, s - k) sampled, k being `schedule.max_staleness`. A worker samples for one version at a time, each
sample in a slot; a step is trained once all its groups are there, and its version is sampled from a while later. Such a loop is a
recurrence of sums and maxima (a max-plus system, Baccelli et al. 1992), so that no clock has to be simulated.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, get_args

from gradbus.spec import RunSpec

_STEPS: Final = 120
"""Simulated steps; the pace is that of the second half, when the first ones no longer matter: 60, whole rounds of 1 to 6 versions."""
_HALVINGS: Final = 40
_TOLERANCE: Final = 0.02
"""Of a pace: what is seen of a run has no more digits."""
_MORE: Final = 4
_SHORTER: Final = 0.9
Bottleneck = Literal["token", "train", "load", "between"]


@dataclass(frozen=True)
class Loop:
    """A run's schedule, and its workers."""

    groups: int
    """Of a step."""
    slots: int
    """Samples that a worker computes at a time."""
    max_staleness: int
    keeps_slots: bool
    """Whether versions change under the samples in flight, so that slots stay full: the schedule `free`."""
    lengths: tuple[tuple[int, ...], ...]
    """Tokens of responses, by group: those of some steps, which are repeated."""
    workers: int

    @classmethod
    def of(cls, spec: RunSpec, lengths: Sequence[tuple[int, ...]], workers: int) -> Loop:
        """That of a run with `workers` rollouts whose groups had these lengths."""
        schedule = spec.schedule
        free = schedule.mode == "free" and schedule.max_staleness > 0
        return cls(schedule.groups_per_step, spec.rollout.slots, schedule.max_staleness, free, tuple(lengths), workers)

    @cached_property
    def work(self) -> tuple[tuple[float, ...], ...]:
        """By step of a period and by worker: the decode steps that it takes for its share of the groups."""
        share = -(-self.groups // self.workers)
        period = max(1, len(self.lengths) // self.groups)
        return tuple(
            tuple(
                self._decode_steps(range(at, min(at + share, (step + 1) * self.groups)))
                for at in range(step * self.groups, (step + 1) * self.groups, share)
            )
            for step in range(period)
        )

    def _decode_steps(self, groups: range) -> float:
        members = [length for group in groups for length in self.lengths[group % len(self.lengths)]]
        if self.keeps_slots:
            return -(-sum(members) // self.slots)
        return makespan(members, self.slots)


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """Seconds."""

    token: float
    """Of a decode step, whatever the number of slots in use."""
    train: float
    """Of a step, without the wait for its groups."""
    load: float
    """Of a version by a worker, which samples nothing meanwhile."""
    between: float
    """From the last sample of a step to the trainer, and from a trained step to the workers, together: scoring, log, publishing."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a run goes."""

    step: float
    """Seconds of a step."""
    busy: float
    """Share of the time in which a worker samples, the mean of all."""
    waits: float
    """Share of the time in which the trainer waits for groups."""
    loads: float
    """Share of the time in which a worker loads a version and samples nothing, the mean of all."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A step with another number of workers."""

    workers: int
    step: float
    """Seconds."""
    gain: float
    """Steps in the same time, against one worker fewer, or against the present number if there are fewer: 0.38 is 38 % more."""


def makespan(durations: Iterable[float], slots: int) -> float:
    """When the last sample ends, if each in order takes the first free slot; in the unit of the durations."""
    free = [0.0] * slots
    for duration in durations:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def simulate(loop: Loop, times: LoopTimes) -> Pace:
    """The pace of a run that has gone on for a while."""
    work = loop.work
    trained, in_use = [0.0], [0.0]
    free = [0.0] * loop.workers
    sampled = loaded = 0.0
    for step in range(_STEPS):
        version = in_use[max(0, step - loop.max_staleness)]
        shares = [decode_steps * times.token for decode_steps in work[step % len(work)]]
        free[: len(shares)] = [max(at, version) + times.load + share for at, share in zip(free, shares, strict=False)]
        arrived = max(free) + times.between / 2
        trained.append(max(trained[-1], arrived) + times.train)
        in_use.append(trained[-1] + times.between / 2)
        if step >= _STEPS // 2:
            sampled, loaded = sampled + sum(shares), loaded + len(shares) * times.load
    seconds = trained[-1] - trained[_STEPS // 2]
    if not seconds:
        return Pace(0.0, 0.0, 0.0, 0.0)
    steps, spent = _STEPS - _STEPS // 2, loop.workers * seconds
    return Pace(seconds / steps, sampled / spent, 1 - times.train * steps / seconds, loaded / spent)


def times_of(loop: Loop, seen: Pace) -> LoopTimes:
    """The times with which the simulated run goes as a real one was seen to."""
    decode_steps = sum(map(sum, loop.work)) / len(loop.work)
    spent = seen.step * loop.workers
    times = LoopTimes(
        token=seen.busy * spent / max(1.0, decode_steps),
        train=(1 - seen.waits) * seen.step,
        load=seen.loads * spent / len(loop.work[0]),
        between=0.0,
    )
    # The least that explains the pace: below some length the way is hidden, so that any shorter one would explain it as well.
    target = (1 - _TOLERANCE) * seen.step
    if simulate(loop, times).step >= target:
        return times
    low, high = 0.0, (loop.max_staleness + 1) * seen.step
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if simulate(loop, replace(times, between=middle)).step < target else (low, middle)
    return replace(times, between=low)


def bottleneck(loop: Loop, times: LoopTimes) -> Bottleneck:
    """The time of `LoopTimes` whose tenth would save most of a step."""

    def shortened(name: str) -> float:
        return simulate(loop, replace(times, **{name: getattr(times, name) * _SHORTER})).step

    return min(get_args(Bottleneck), key=shortened)


def advise(loop: Loop, times: LoopTimes) -> Iterator[Advice]:
    """With one worker fewer, and with up to four more, each on a device of its own."""
    first, last = max(1, loop.workers - 1), loop.workers + _MORE
    steps = {workers: simulate(replace(loop, workers=workers), times).step for workers in range(first, last + 1)}
    for workers, step in steps.items():
        if workers != loop.workers:
            before = loop.workers if workers < loop.workers else workers - 1
            yield Advice(workers, step, steps[before] / step - 1 if step else 0.0)

"""Spans of a task's traced groups on this worker, recorded when the task is over.

generate                     from the task's arrival to the buffer
├─ set_aside                 until the worker gave it to the engine: other tasks, or its version, came first
├─ queue                     until the engine took up the group
├─ prefill                   of the prompt, if the engine can tell
├─ sample (one each)         from its first token to its last
├─ turn (of an episode)      until the environment has answered to it
└─ deliver                   into the buffer
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import SpanKind

from gradbus.bus import Delivery
from gradbus.telemetry import Attributes, Interval, TimedSpan, child_of, is_tracing, record
from gradbus.v1.group_pb2 import Group
from gradbus.v1.sample_pb2 import Sample
from gradbus.v1.task_pb2 import Task
from gradbus_rollout.engines.base import Completion, GroupCompletion

_MOST_CHARACTERS: Final = 2048
"""Of a text in a span: collectors refuse a message of more than 4 MiB, and an export has up to 512 spans of two texts."""


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """A turn of an episode, in nanoseconds since 1970."""

    began: int
    drawn: int
    answered: int
    tokens: int
    finish: str


@dataclass(slots=True)
class TaskTimes:
    """When each stage of a task ended, in nanoseconds since 1970."""

    received: int
    started: int = field(default_factory=time.time_ns)
    """When the worker gave it to the engine."""
    sampled: int = 0
    delivered: int = 0
    completions: Sequence[GroupCompletion] = ()
    turns: Sequence[Sequence[Sequence[TurnTimes]]] = ()
    """Of episodes: by group and sample."""
    groups: Sequence[Group] = ()
    """Those whose texts the spans carry."""

    def mark_sampled(self, completions: Sequence[GroupCompletion], turns: Sequence[Sequence[Sequence[TurnTimes]]] = ()) -> None:
        """The engine has returned the completions."""
        self.sampled, self.completions, self.turns = time.time_ns(), completions, turns


def first_trace(task: Task) -> str:
    """Traceparent of the task's first traced group, to which the task's metrics link; empty if no group is traced."""
    return next((group.traceparent for group in task.groups if group.traceparent), "")


@contextmanager
def recorded(delivery: Delivery, run: Attributes) -> Iterator[TaskTimes]:
    """Records the task's spans after the block. A task that fails is recorded even if none of its groups is traced."""
    times = TaskTimes(delivery.received)
    try:
        yield times
    except Exception as error:
        _record_task(delivery.task, times, run, f"{type(error).__name__}: {error}")
        raise
    times.delivered = time.time_ns()
    _record_task(delivery.task, times, run)


def _record_task(task: Task, times: TaskTimes, run: Attributes, error: str = "") -> None:
    if not is_tracing():
        return
    common: Attributes = {**run, "messaging.message.id": task.task_id, "gradbus.policy.version": task.version}
    traced = {n: group for n, group in enumerate(task.groups) if group.traceparent}
    told = {group.index: group for group in times.groups}
    for n, group in traced.items():
        whole = TimedSpan(
            "generate",
            times.received,
            times.delivered,
            group.traceparent,
            own=child_of(group.traceparent),
            attributes={**common, "gradbus.group.index": group.index},
            kind=SpanKind.CONSUMER,
            error=error,
        )
        if not error:
            _record_parts(whole.own, times, times.completions[n], told.get(group.index))
            _record_turns(whole.own, times.turns[n] if times.turns else (), run, told.get(group.index))
        record(whole)
    if error and not traced:
        record(TimedSpan("generate", times.received, attributes=common, kind=SpanKind.CONSUMER, error=error))


def _record_parts(parent: str, times: TaskTimes, completion: GroupCompletion, told: Group | None) -> None:
    samples = [(n, sample, sample.times) for n, sample in enumerate(completion.completions) if sample.times is not None]
    first = min([interval[0] for *_, interval in samples], default=times.sampled)
    taken = completion.prefill[0] if completion.prefill else first
    phases: Mapping[str, Interval | None] = {
        "set_aside": (times.received, times.started),
        "queue": (times.started, taken),
        "prefill": completion.prefill,
        "deliver": (times.sampled, times.delivered),
    }
    for name, interval in phases.items():
        if interval is not None:
            record(TimedSpan(name, *interval, parent))
    for n, sample, interval in samples:
        attributes = {"gradbus.sample.n": n, "gradbus.queue.seconds": (interval[0] - taken) / 1e9, **_sampled(sample)}
        if told is not None:
            attributes |= _texts(told.prompt_text, told.samples[n].text)
        record(TimedSpan("sample", *interval, parent, attributes=attributes))


def _record_turns(parent: str, samples: Sequence[Sequence[TurnTimes]], run: Attributes, told: Group | None) -> None:
    for n, turns in enumerate(samples):
        for number, turn in enumerate(turns):
            attributes = {
                **run,
                "gradbus.sample.n": n,
                "gradbus.turn": number,
                "gradbus.environment.seconds": (turn.answered - turn.drawn) / 1e9,
                **_drawn(turn.tokens, turn.finish),
            }
            if told is not None:
                attributes |= _texts_of_turn(told, told.samples[n], number)
            record(TimedSpan("turn", turn.began, turn.answered, parent, attributes=attributes))


def _drawn(tokens: int, finish: str) -> Attributes:
    return {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.usage.output_tokens": tokens,
        "gen_ai.response.finish_reasons": [finish],
    }


def _texts_of_turn(told: Group, sample: Sample, number: int) -> Attributes:
    """What the policy was told since its turn before, and what it said."""
    turns = sample.episode.turns
    before = "\n".join(message.content for message in turns[number - 1].messages) if number else told.prompt_text
    return _texts(before, turns[number].text)


def _texts(given: str, drawn: str) -> Attributes:
    return {"input.value": given[:_MOST_CHARACTERS], "output.value": drawn[:_MOST_CHARACTERS]}


def _sampled(sample: Completion) -> Attributes:
    return {
        **_drawn(len(sample.token_ids), sample.finish),
        "gradbus.span.versions": [span.version for span in sample.spans],
        "gradbus.span.starts": [span.start for span in sample.spans],
    }

"""Subcommand advise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import typer

from gradbus.cli.options import RunId, State, connect
from gradbus.cli.output import AsJson, print_json, printable
from gradbus.errors import StackError

if TYPE_CHECKING:
    from gradbus.client import Client
    from gradbus.plan.loop import Advice, Bottleneck, Loop, LoopTimes, Pace
    from gradbus.resources.runs import EventResource, RunResource

_STEPS: Final = 50
"""Newest steps that are averaged."""
_FEWEST: Final = 5
_EVENTS: Final = 500
"""A page of events: the steps, and what else happens between them."""
_MOST_EVENTS: Final = 20_000
"""Newest events among which steps are looked for."""
_SAMPLES: Final = 1000
"""A page of samples."""
_LIMITS: Final[dict[Bottleneck, str]] = {
    "token": "sampling is the limit: more rollouts, faster ones, or more rollout.slots if they have the memory",
    "train": "training is the limit: give the trainer a faster device or more ranks; a further rollout brings nothing",
    "load": "loading weights is the limit: larger steps, fewer bytes (LoRA, weights.dtype), or the schedule `free`",
    "between": "the way between trainer and rollouts is the limit (scoring, log, publishing): a larger schedule.max_staleness hides it",
}


def advise(run_id: RunId, as_json: AsJson = False, state: State = None) -> None:
    """Show what limits a running run, and how fast it would be with other numbers of rollout workers."""
    from gradbus.plan.loop import advise, bottleneck, times_of

    with connect(state) as client:
        run = client.run(run_id)
        loop, pace = observe(client, run)
    times = times_of(loop, pace)
    limit, advice = bottleneck(loop, times), list(advise(loop, times))
    if as_json:
        print_json(_document(run.id, pace, times, loop, advice) | {"limit": limit})
        return
    for line in _lines(pace, loop, limit, advice):
        typer.echo(printable(line))


def observe(client: Client, run: RunResource) -> tuple[Loop, Pace]:
    """A run's loop with the lengths of its newest responses, and its pace. Raises StackError for a run of which too little can be seen."""
    from gradbus.plan.loop import Loop

    if run.spec.trains_given:
        raise StackError("the run samples nothing, so no rollout could make it faster; see `gradbus plan` for its trainer")
    steps = _newest_steps(client, run.id)
    pace = _pace(run, steps)
    return Loop.of(run.spec, _lengths(client, run.id, steps), run.progress.workers), pace


def _newest_steps(client: Client, run_id: str) -> list[EventResource]:
    """Events of the newest steps that one trainer made without a pause between them."""
    from gradbus.client.newest_events import newest_first

    steps: list[EventResource] = []
    for event in islice(newest_first(lambda after: client.events_page(run_id, after, limit=_EVENTS)), _MOST_EVENTS):
        if event.type == "metrics":
            steps.append(event)
        if event.type in {"state", "learner"} or len(steps) > _STEPS:
            break  # before a pause or a restart: the time between two steps is no step
    return steps[::-1]


def _pace(run: RunResource, steps: Sequence[EventResource]) -> Pace:
    """Raises StackError while there is too little to see."""
    from gradbus.plan.loop import Pace

    if run.state != "running" or len(steps) <= _FEWEST or not run.progress.workers:
        raise StackError(
            f"the run is {run.state} and has made {max(0, len(steps) - 1)} steps in a row; advice needs a running run, its rollouts and "
            f"at least {_FEWEST} steps: ask again later"
        )
    if not run.progress.shares.get("generate"):
        raise StackError("the rollouts of the run have not yet measured how long they sample; ask again in some seconds")
    seconds = (steps[-1].created_at - steps[0].created_at).total_seconds() / (len(steps) - 1)
    waited = sum(step.data["seconds"]["wait"] for step in steps[1:]) / (len(steps) - 1)
    shares, free = run.progress.shares, run.spec.schedule.mode == "free"
    # In a `free` schedule samples are in flight while a version is loaded, so that the time counts as that of sampling.
    return Pace(seconds, shares.get("generate", 0.0), min(1.0, waited / seconds), 0.0 if free else shares.get("load", 0.0))


def _lengths(client: Client, run_id: str, steps: Sequence[EventResource]) -> list[tuple[int, ...]]:
    """Tokens of responses of the newest steps, by group."""
    since = int(steps[-_FEWEST].created_at.timestamp() * 1000)
    found: dict[int, list[int]] = {}
    page = client.samples_page(run_id, after=f"{since}-0.0", limit=_SAMPLES)
    for sample in page.data:
        found.setdefault(sample.index, []).append(sample.token_count)
    if page.has_more and len(found) > 1:
        found.popitem()  # the page may end within it
    if not found:
        raise StackError("no group has entered the log in the last steps; ask again while the run samples")
    return [tuple(found[index]) for index in sorted(found)]


def _lines(pace: Pace, loop: Loop, limit: Bottleneck, advice: Sequence[Advice]) -> Iterator[str]:
    shares = f"rollouts sample {pace.busy:.0%} of the time and load weights {pace.loads:.0%}, and the trainer waits {pace.waits:.0%}"
    yield f"{_rollouts(loop.workers)}: {pace.step:.3g} s a step; {shares}"
    yield f"   {_LIMITS[limit]}"
    for other in advice:
        gain = f"{other.gain:+.0%}"
        against = f" against {other.workers - 1}" if other.workers > loop.workers + 1 else ""
        yield f"{_rollouts(other.workers)}: {other.step:.3g} s a step, {gain}{against}"


def _rollouts(count: int) -> str:
    return f"{count} rollout" + ("s" if count > 1 else "")


def _document(run_id: str, pace: Pace, times: LoopTimes, loop: Loop, advice: Sequence[Advice]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "object": "advice",
        "run_id": run_id,
        "workers": loop.workers,
        "seconds": {"step": pace.step, "token": times.token, "train": times.train, "load": times.load, "between": times.between},
        "shares": {"generate": pace.busy, "load": pace.loads, "wait": pace.waits},
        "with_workers": [{"workers": one.workers, "seconds": one.step, "gain": one.gain} for one in advice],
    }

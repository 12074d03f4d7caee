"""The subcommands `events` and `track`: a run's history, filtered by type and level, or in an experiment tracker."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gradbus.cli.format import number
from gradbus.cli.options import RunId, State, connect, state_option, taking
from gradbus.cli.output import AsJson, JsonLines, print_json, print_json_line, print_notice, printable
from gradbus.errors import TrackerError, first_line

if TYPE_CHECKING:
    from gradbus.client import Client
    from gradbus.resources.runs import EventResource

_CHARTED = ("reward", "teacher_kl", "loss", "accuracy", "margin", "entropy", "grad_norm")
_MOST = 100_000


class Level(StrEnum):
    """How serious an event is, in rising order."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(slots=True)
class EventFilter:
    """Selects events by type and level, and notes which types it has seen."""

    types: tuple[str, ...]
    """Empty: all."""
    level: Level
    """The lowest that is selected."""
    seen: set[str] = field(default_factory=set)

    def select(self, events: Iterable[EventResource]) -> Iterator[EventResource]:
        """The selected events, in order."""
        levels = list(Level)[list(Level).index(self.level) :]
        for event in events:
            self.seen.add(event.type)
            if (not self.types or event.type in self.types) and event.level in levels:
                yield event

    @property
    def options(self) -> str:
        """The options of the command line that make this filter."""
        level = "" if self.level is Level.INFO else f" --level {self.level}"
        return "".join(f" --type {shlex.quote(name)}" for name in self.types) + level


@dataclass(frozen=True, slots=True)
class EventOptions:
    """Options of `gradbus events`."""

    run_id: RunId
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print events until the run ends.")] = False
    after: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Only events after this id.")] = 0
    tail: Annotated[int | None, typer.Option(min=1, max=_MOST, metavar="N", help="Only the newest N, and with -f those that come.")] = None
    types: Annotated[list[str] | None, typer.Option("--type", help="Only events of this type, e.g. `metrics`; repeatable.")] = None
    level: Annotated[Level, typer.Option(help="Only events of this level or a higher one.")] = Level.INFO
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="The first N; without effect on --follow and --tail.")] = 100
    state: State = None
    as_json: JsonLines = False


@taking(EventOptions)
def events(options: EventOptions) -> None:
    """Show a run's events."""
    from gradbus.client import document

    wanted = EventFilter(tuple(options.types or ()), options.level)
    most = None if options.follow or options.tail else options.limit
    shown, last = 0, options.after
    with connect(options.state) as client:
        run_id = client.find(options.run_id).id
        for event in _selected(client, run_id, options, wanted):
            if shown == most:
                again = f"gradbus events {run_id} --after {last}{wanted.options}{state_option(options.state)}"
                print_notice(f"there are more entries; `{again}` shows them")
                break
            shown, last = shown + 1, event.id
            print_json_line(document(event)) if options.as_json else typer.echo(_event_line(event))
    if not shown:
        types = ", ".join(sorted(wanted.seen))
        print_notice(f"no event is selected; the history has the types {types}" if types else "no events yet")


def _selected(client: Client, run_id: str, options: EventOptions, wanted: EventFilter) -> Iterator[EventResource]:
    after = options.after
    if options.tail:
        newest: deque[EventResource] = deque(maxlen=options.tail)
        for event in client.events(run_id, after):
            after = event.id
            newest.extend(wanted.select([event]))
        yield from newest
    if options.follow:
        yield from wanted.select(client.stream(run_id, after))
    elif not options.tail:
        yield from wanted.select(client.events(run_id, after))


def _event_line(event: EventResource) -> str:
    mark = "" if event.level == "info" else f"{event.level.upper()} "
    data = event.data if event.type == "metrics" else {}
    charted = [f"  {name} {number(data[name])}" for name in _CHARTED if name in data]
    message = printable(event.message)
    return f"{event.id:>8}  {event.created_at:%H:%M:%S}  {event.type:<12}  {mark}{message}{''.join(charted)}"


def track(
    run_id: RunId,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TRACKER", help="tensorboard:DIR, wandb[:PROJECT], mlflow[:URI], trackio[:PROJECT], csv:FILE or jsonl:FILE."
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Write what there is, and do not wait for more.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's metrics into TensorBoard, W&B, MLflow or Trackio, until it ends.

    It may be stopped and started again, with runs in progress and with old ones: nothing is written twice.
    """
    from gradbus.client import document
    from gradbus.trackers import TrackedRun, feed, open_sink

    with connect(state) as client:
        run = client.run(run_id)
        sink = open_sink(to, TrackedRun(run.id, run.name, document(run)["spec"]))
        if sink.written and not as_json:
            print_notice(f"{to} has the run up to event {sink.written}")
        try:
            written = feed(client, run.id, sink, follow=not once)
            ended = client.run(run.id).state
            sink.close(ended)
        except (OSError, ValueError, RuntimeError) as error:
            raise TrackerError(f"cannot write to {to}: {first_line(error)}; start the command again, it goes on where it ended") from error
    if as_json:
        print_json({"object": "track", "run_id": run.id, "to": to, "written": written, "state": ended})
    else:
        typer.echo(f"wrote {written} points of run {run.id} ({ended}) to {to}")

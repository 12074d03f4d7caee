"""Watches a run: one line that updates on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from gradbus.cli.format import progress_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradbus.client import Client

_EXIT: Final = {"succeeded": 0, "failed": 1, "cancelled": 3}
_LIVE_SECONDS = 0.5
_POLL_SECONDS = 1.0
_LINE_SECONDS = 2.0
_SILENCE_SECONDS = 60.0

Json = dict[str, Any]


def follow_run(client: Client, run_id: str, option: str | None = "") -> int:
    """Shows a run until it is over; the exit status it stands for. Ctrl-C leaves the run alone.

    `option` is what the commands that it advises need besides; with None it advises none, and Ctrl-C is its caller's.
    """
    from gradbus.client import RetryPolicy

    client.patience = RetryPolicy(_SILENCE_SECONDS, lambda text: print(text, flush=True))
    try:
        last = _live(client, run_id) if sys.stdout.isatty() else _lines(client, run_id)
    except KeyboardInterrupt:
        if option is None:
            raise
        print(f"\nthe run goes on; `gradbus show {run_id} --follow{option}` watches it, `gradbus cancel {run_id}{option}` ends it")
        return 130
    print(f"run {run_id} {last['state']}" + (f": {last['reason']}" if last["reason"] else ""))
    if last["state"] == "succeeded" and option is not None:
        print(f"take the model: gradbus export {run_id} DIR{option}")
    return _EXIT[last["state"]]


def _live(client: Client, run_id: str) -> Json:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()
    run: Json = {}
    with Live(console=console, auto_refresh=False) as live:
        for run in _snapshots(client, run_id, _LIVE_SECONDS):
            # The numbers are cut to the width; what ails the run is read by a person, and so is shown whole.
            shown = [Text(progress_line(run), no_wrap=True, overflow="ellipsis")]
            shown += [Text(_ailment(run), style="yellow")] if _ailment(run) else []
            live.update(Group(*shown), refresh=True)
    return run


def _lines(client: Client, run_id: str) -> Json:
    run: Json = {}
    shown: tuple[Any, ...] = ()
    line, printed = "", 0.0
    for run in _snapshots(client, run_id, _POLL_SECONDS):
        notable = (run["state"], run["progress"]["accuracy"], bool(_ailment(run)))
        # A wait is said in every line, for it counts seconds; what else is wrong when it begins.
        ailment = _ailment(run) if run["waiting_for"] or notable != shown else ""
        newest = "  ".join(filter(None, (progress_line(run), ailment)))
        if notable != shown or (newest != line and time.monotonic() - printed >= _LINE_SECONDS):
            print(newest, flush=True)
            shown, line, printed = notable, newest, time.monotonic()
    return run


def _ailment(run: Json) -> str:
    """What a run waits for, or what is wrong while it goes on; the reason of one that is over is told after it."""
    if run["waiting_for"]:
        return f"waits for {run['waiting_for']}"
    return "" if run["state"] in _EXIT else str(run["reason"])


def _snapshots(client: Client, run_id: str, seconds: float) -> Iterator[Json]:
    """The run, again and again, the last time when it is over."""
    while True:
        run = client.run(run_id)
        yield run
        if run["state"] in _EXIT:
            return
        time.sleep(seconds)

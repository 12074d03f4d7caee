"""Follows a run: one updating line on a terminal, plain lines in a pipe."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gradbus.cli.format import progress_line
from gradbus.cli.output import print_json_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradbus.client import Client
    from gradbus.resources.runs import RunResource

_EXIT: Final = {"succeeded": 0, "failed": 1, "cancelled": 3}
_LIVE_SECONDS = 0.5
_POLL_SECONDS = 1.0
_LINE_SECONDS = 2.0
_SILENCE_SECONDS = 60.0
_NUMBER: Final = re.compile(r"\d+")
_STEPS: Final = 100
"""Newest steps whose pace tells the time left."""


def follow_run(client: Client, run_id: str, option: str | None = "") -> int:
    """Shows a run until it ends. Returns its exit status: 0 succeeded, 1 failed, 3 cancelled. Ctrl-C does not affect the run.

    `option` is appended to the commands that it suggests. With None it suggests none and leaves Ctrl-C to the caller.
    """
    from gradbus.client import RetryPolicy

    client.retries = RetryPolicy(_SILENCE_SECONDS, lambda text: print(text, flush=True))
    try:
        last = _live(client, run_id) if sys.stdout.isatty() else _lines(client, run_id)
    except KeyboardInterrupt:
        if option is None:
            raise
        print(f"\nthe run goes on; `gradbus show {run_id} --follow{option}` follows it, `gradbus cancel {run_id}{option}` cancels it")
        return 130
    print(f"run {run_id} {last.state}" + (f": {printable(last.reason)}" if last.reason else ""))
    if last.state == "succeeded" and option is not None:
        print(f"export the model: gradbus export {run_id} DIR{option}")
    return _EXIT[last.state]


def follow_run_as_json(client: Client, run_id: str) -> int:
    """Prints the run as one line of JSON whenever it changes, until it ends. Returns its exit status, as `follow_run`."""
    from gradbus.client import document

    client.retries = replace(client.retries, seconds=_SILENCE_SECONDS)
    shown: dict[str, Any] = {}
    for run in _snapshots(client, run_id, _POLL_SECONDS):
        summary = {name: value for name, value in document(run).items() if name != "spec"}
        if summary != shown:
            print_json_line(summary)
            shown = summary
    return _EXIT[run.state]


def _live(client: Client, run_id: str) -> RunResource:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()
    time_left = _TimeLeft()
    with Live(console=console, auto_refresh=False) as live:
        for run in _snapshots(client, run_id, _LIVE_SECONDS):
            # The progress line is cut to the terminal's width; a problem is always shown whole.
            shown = [Text(progress_line(run, time_left.of(run)), no_wrap=True, overflow="ellipsis")]
            shown += [Text(_problem(run), style="yellow")] if _problem(run) else []
            live.update(Group(*shown), refresh=True)
    return run


def _lines(client: Client, run_id: str) -> RunResource:
    shown: tuple[Any, ...] = ()
    line, printed = "", 0.0
    time_left = _TimeLeft()
    for run in _snapshots(client, run_id, _POLL_SECONDS):
        # A problem whose numbers alone have changed is the same one.
        notable = (run.state, run.progress.accuracy, run.progress.held_out_loss, _NUMBER.sub("", _problem(run)))
        # A wait counts seconds, so it is in every line; any other problem is printed once.
        problem = _problem(run) if run.waiting_for or notable != shown else ""
        newest = "  ".join(filter(None, (progress_line(run, time_left.of(run)), problem)))
        if notable != shown or (newest != line and time.monotonic() - printed >= _LINE_SECONDS):
            print(newest, flush=True)
            shown, line, printed = notable, newest, time.monotonic()
    return run


class _TimeLeft:
    """Until a run ends, by the pace of the steps that it made while it was watched."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_STEPS)
        """When a step was seen first, and which."""

    def of(self, run: RunResource) -> float | None:
        """Seconds; None while too little was seen."""
        step: int = run.progress.step
        if run.state != "running":
            self._seen.clear()  # a pause is no part of any step
            return None
        if not self._seen or step != self._seen[-1][1]:
            self._seen.append((time.monotonic(), step))
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        # What is seen first is somewhere between two steps, so that two steps say little.
        return (run.steps - last) * (last_at - first_at) / (last - first) if last - first > 1 else None


def _problem(run: RunResource) -> str:
    """The reason for which an active run waits or has a problem; empty for a run that ended, whose reason is printed last."""
    if run.waiting_for:
        return f"waits for {printable(run.waiting_for)}"
    return "" if run.state in _EXIT else printable(run.reason)


def _snapshots(client: Client, run_id: str, seconds: float) -> Iterator[RunResource]:
    """The run every `seconds` until it has ended."""
    while True:
        run = client.run(run_id)
        yield run
        if run.state in _EXIT:
            return
        time.sleep(seconds)

"""Watches a run: one line that updates on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

from gradbus.cli.format import progress_line
from gradbus.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradbus.client import Client

_EXIT: Final = {"succeeded": 0, "failed": 1, "cancelled": 3}
_LIVE_SECONDS = 0.5
_POLL_SECONDS = 1.0
_LINE_SECONDS = 2.0
_SILENCE_SECONDS = 60.0

Json = dict[str, Any]


def follow_run(client: Client, run_id: str) -> int:
    """Shows a run until it is over; the exit status it stands for. Ctrl-C leaves the run alone."""
    try:
        last = _live(client, run_id) if sys.stdout.isatty() else _lines(client, run_id)
    except KeyboardInterrupt:
        print(f"\nthe run goes on; `gradbus events {run_id} --follow` watches it, `gradbus cancel {run_id}` ends it")
        return 130
    print(f"run {run_id} {last['state']}" + (f": {last['reason']}" if last["reason"] else ""))
    if last["state"] == "succeeded":
        print(f"take the model: gradbus export {run_id} DIR")
    return _EXIT[last["state"]]


def _live(client: Client, run_id: str) -> Json:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    run: Json = {}
    with Live(console=console, auto_refresh=False) as live:
        for run in _snapshots(client, run_id, _LIVE_SECONDS, lambda text: live.update(Text(text), refresh=True)):
            live.update(Text(progress_line(run), no_wrap=True, overflow="ellipsis"), refresh=True)
    return run


def _lines(client: Client, run_id: str) -> Json:
    run: Json = {}
    shown: tuple[Any, ...] = ()
    printed = 0.0
    for run in _snapshots(client, run_id, _POLL_SECONDS, lambda text: print(text, flush=True)):
        notable = (run["state"], run["progress"]["accuracy"], run["waiting_for"])
        if notable != shown or time.monotonic() - printed >= _LINE_SECONDS:
            print(progress_line(run), flush=True)
            shown, printed = notable, time.monotonic()
    return run


def _snapshots(client: Client, run_id: str, seconds: float, say: Callable[[str], None]) -> Iterator[Json]:
    """The run, again and again, the last time when it is over. A gateway that restarts is waited for."""
    heard = time.monotonic()
    while True:
        try:
            run = client.run(run_id)
        except StackError as error:
            if time.monotonic() - heard > _SILENCE_SECONDS:
                raise
            say(f"{error}; trying again")
        else:
            heard = time.monotonic()
            yield run
            if run["state"] in _EXIT:
                return
        time.sleep(seconds)

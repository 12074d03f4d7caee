"""Options that verbs share, and how a run is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradbus.errors import StackError

if TYPE_CHECKING:
    from gradbus.client import Client

_STATE_HELP = "State folder of the embedded stack; .gradbus, or $GRADBUS_STATE."
State = Annotated[Path | None, typer.Option("--state", help=_STATE_HELP, show_default=False)]
RunId = Annotated[str, typer.Argument(metavar="ID", help="A run's id or the start of one, its name, or `last`.")]
_SEARCHED = 1000


def connect(state: Path | None) -> Client:
    """A client of the gateway, which says when it has to wait for it."""
    from gradbus.client import Client, Patience

    return Client.discover(state, Patience(say=lambda text: print(text, file=sys.stderr, flush=True)))


def find_run(client: Client, given: str) -> dict[str, Any]:
    """The run that `given` means: newest first for a name, and the only one for the start of an id.

    Raises StackError when none does, or more than one.
    """
    known: list[dict[str, Any]] = client.runs(limit=_SEARCHED)["data"]
    if given == "last" and known:
        return known[0]
    exact = [run for run in known if run["id"] == given] or [run for run in known if run["name"] == given]
    if exact:
        return exact[0]
    found = [run for run in known if run["id"].startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise StackError(f"{given!r} is the start of {len(found)} runs: {', '.join(run['id'] for run in found[:5])}; give more of it")
    raise StackError(f"no run is called {given!r}; `gradbus runs` lists them")

"""The verb `open`: the web UI in a browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gradbus.cli.options import State, connect, find_run


def open_web_ui(
    run_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A run to open at once: its id, its name or `last`.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the link as well, where there is a browser.")] = True,
    state: State = None,
) -> None:
    """Print a link to the web UI. It signs one browser in, once, within two minutes."""
    with connect(state) as client:
        link = client.sign_in_link(find_run(client, run_id)["id"] if run_id else "")
    typer.echo(link)
    if browser and sys.stdout.isatty() and _has_desktop():
        import webbrowser

        webbrowser.open(link)


def _has_desktop() -> bool:
    """Text browsers would take over the terminal, so systems without a desktop of their own need a display."""
    return sys.platform in {"darwin", "win32"} or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

"""The command `gradbus`: its subcommands, with errors as plain text."""

from __future__ import annotations

import os
import sys

import typer

from gradbus.cli import inspect, keys, runs, stack
from gradbus.errors import GradbusError

app = typer.Typer(
    name="gradbus",
    help="Reinforcement-learning post-training of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_VERBS = {
    "This machine": (stack.up, stack.down, stack.status),
    "Runs": (runs.run, runs.pause, runs.resume, runs.cancel, runs.export),
    "Inspect": (inspect.runs, inspect.show, inspect.samples, inspect.events),
}
for _panel, _functions in _VERBS.items():
    for _function in _functions:
        app.command(rich_help_panel=_panel)(_function)
app.command("open", rich_help_panel="Inspect")(inspect.open_web_ui)  # `open` itself is Python's
app.add_typer(keys.app, name="keys", rich_help_panel="This machine")


def main() -> None:
    """Runs the command. Expected errors end with status 2 and without a traceback."""
    try:
        app()
    except GradbusError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe; nothing more can be printed, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()

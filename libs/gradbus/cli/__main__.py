"""The command `gradbus`: its subcommands, with errors as text or JSON."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gradbus.cli import delete, environments, events, inspect, keys, reward, runs, stack, status
from gradbus.cli.history import fork, lineage, replay
from gradbus.cli.output import discard_output, print_error, wants_json
from gradbus.cli.specs import advise, data, plan
from gradbus.errors import GradbusError

app = typer.Typer(
    name="gradbus",
    help="Reinforcement-learning post-training of language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_VERBS = {
    "This machine": (stack.up, stack.down, status.status),
    "Runs": (plan.plan, runs.run, fork.fork, runs.tag, runs.pause, runs.resume, runs.cancel, reward.reward, delete.delete, runs.export),
    "Inspect": (
        *(inspect.runs, inspect.show, inspect.samples, inspect.episode, events.events, events.track),
        *(lineage.lineage, advise.advise, replay.replay),
    ),
}
for _panel, _functions in _VERBS.items():
    for _function in _functions:
        app.command(rich_help_panel=_panel)(_function)
app.command("open", rich_help_panel="Inspect")(inspect.open_web_ui)  # `open` itself is Python's
app.add_typer(keys.app, name="keys", rich_help_panel="This machine")
app.add_typer(environments.app, name="env", rich_help_panel="Runs")
app.add_typer(data.app, name="data", rich_help_panel="Runs")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"gradbus {version('gradbus')}")
        raise typer.Exit


@app.callback()
def gradbus(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Reinforcement-learning post-training of language models."""


def main() -> None:
    """Runs the command. Expected errors end with status 2 and without a traceback, Ctrl-C with 130, a closed pipe in silence."""
    status_code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    sys.exit(status_code)


def _run() -> int | str | None:
    try:
        # With --json the parser's own errors are raised, instead of printed as a drawing.
        return app(standalone_mode=not wants_json()) or 0
    except GradbusError as error:
        print_error(error)
        return 2
    except typer.TyperException as error:
        print_error(error)
        return 2
    except BrokenPipeError:
        discard_output()
        return 0
    except SystemExit as ended:
        return ended.code


if __name__ == "__main__":
    main()

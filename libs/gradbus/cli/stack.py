"""Subcommands that start and stop the embedded stack: up and down."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradbus.cli.options import State, state_option, taking
from gradbus.cli.output import AsJson, JsonLines, print_json_line
from gradbus.errors import StackError

if TYPE_CHECKING:
    from gradbus.embedded import StackConfig

_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StackOptions:
    """Options of `gradbus up`."""

    state: State = None
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 chooses a free one and keeps it.")] = 8080
    trainers: Annotated[
        int | None, typer.Option(min=1, help="Number of trainer workers: as many runs train at a time. Default: 1.", show_default=False)
    ] = None
    rollouts: Annotated[int | None, typer.Option(min=1, help="Number of rollout workers. Default: 1.", show_default=False)] = None
    layout: Annotated[
        Path | None, typer.Option(help="TOML file with the devices of each worker, instead of the two numbers.", show_default=False)
    ] = None
    memory: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=SIZE, e.g. trainer=8GiB: limit of each process of a role; repeatable. Default: a share of the machine's."),
    ] = None
    detach: Annotated[bool, typer.Option("--detach", help="Return once it is ready; stop it with `gradbus down`.")] = False
    as_json: JsonLines = False


@taking(StackOptions)
def up(options: StackOptions) -> None:
    """Start the whole system on this machine and run it until Ctrl-C."""
    import asyncio

    from rich.console import Console

    from gradbus.embedded.supervisor import serve, start_detached
    from gradbus.telemetry import configure_logging

    config = _config(options)
    started_at = time.monotonic()
    with Console(stderr=options.as_json).status("starting servers and services") as waiting:

        def ready() -> None:
            waiting.stop()
            if options.as_json:
                _print_ready(config.state)
            else:
                _show_ready(config.state, time.monotonic() - started_at, detached=options.detach)

        if options.detach:
            start_detached(config, options.layout)
            ready()
        else:
            configure_logging("supervisor", "WARNING")
            asyncio.run(serve(config, ready, _ignore if options.as_json else _print_stopping))
            _show_stopped(config.state, options.as_json)


def _config(options: StackOptions) -> StackConfig:
    from gradbus.deploy.layout import read_layout
    from gradbus.embedded import StackConfig
    from gradbus.embedded.memory import parse_limits

    layout = read_layout(options.layout) if options.layout else None
    trainers = options.trainers or (len(layout.trainers) if layout else 1)
    rollouts = options.rollouts or (len(layout.rollouts) if layout else 1)
    return StackConfig(_state(options.state), options.port, trainers, rollouts, layout, memory=parse_limits(options.memory or []))


def down(state: State = None, as_json: AsJson = False) -> None:
    """Stop the stack. Services finish their work or hand it back."""
    import os
    import signal

    from gradbus.embedded import StateFolder

    folder = StateFolder(_state(state))
    owner = folder.owner()
    if not owner:
        if as_json:
            _show_stopped(folder.root, as_json)
        else:
            typer.echo(f"no stack runs on {folder.root}")
        return
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        os.kill(owner, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while folder.owner() == owner:
        if time.monotonic() > deadline:
            raise StackError(f"the stack (pid {owner}) did not stop in {_STOP_SECONDS:.0f} s; see `gradbus status`, or kill it by its pid")
        time.sleep(0.1)
    _show_stopped(folder.root, as_json)


def _state(given: Path | None) -> Path:
    from gradbus.embedded.state import DEFAULT_STATE

    return given or DEFAULT_STATE


def _show_ready(state: Path, seconds: float, *, detached: bool) -> None:
    from rich.console import Console

    from gradbus.embedded import DEFAULT_STATE, StateFolder

    folder = StateFolder(state)
    stack = folder.read("stack.json")
    option = state_option(None if state == DEFAULT_STATE else state)
    rows = {
        "API": stack["url"],
        "API key": str(folder.api_key_file),
        "logs": str(folder.logs),
        "next": f"gradbus run SPEC.toml --follow{option}",
        "stop": f"gradbus down{option}" if detached else "Ctrl-C",
    }
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n[bold green]●[/] [bold]Gradbus is up[/] [dim]{len(stack['processes'])} processes, {seconds:.1f} s[/]\n")
    for label, value in rows.items():
        console.print(f"  [dim]{label:<8}[/] {value}")
    console.print()


def _print_ready(state: Path) -> None:
    from gradbus.embedded import StateFolder

    folder = StateFolder(state)
    stack = folder.read("stack.json")
    places = {"url": stack["url"], "api_key_file": str(folder.api_key_file), "logs": str(folder.logs)}
    print_json_line({"object": "stack", "state": "ready", "state_folder": str(folder.root), **places})


def _ignore() -> None:
    """In place of a message."""


def _print_stopping() -> None:
    with contextlib.suppress(OSError):  # a closed terminal stops the stack too, without a message
        print("\nstopping: services finish their work or hand it back", flush=True)


def _show_stopped(state: Path, as_json: bool) -> None:
    if as_json:
        print_json_line({"object": "stack", "state": "stopped", "state_folder": str(state.absolute())})
    else:
        typer.echo(f"stopped; all state is kept in {state.absolute()}")

"""Subcommands for the embedded stack: up, down and status."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gradbus.cli.options import State
from gradbus.errors import StackError

_STOP_SECONDS = 60.0


def up(
    state: State = None,
    port: Annotated[int, typer.Option(help="Port of the API; 0 chooses a free one and keeps it.")] = 8080,
    rollouts: Annotated[int, typer.Option(min=1, help="Number of rollout workers.")] = 1,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it is ready; stop it with `gradbus down`.")] = False,
) -> None:
    """Start the whole system on this machine and run it until Ctrl-C."""
    import asyncio

    from rich.console import Console

    from gradbus.embedded import StackConfig
    from gradbus.embedded.supervisor import serve, start_detached
    from gradbus.telemetry import configure_logging

    config = StackConfig(_state(state), port, rollouts)
    started_at = time.monotonic()
    with Console().status("starting servers and services") as waiting:

        def ready() -> None:
            waiting.stop()
            _show_ready(config.state, time.monotonic() - started_at, detached=detach)

        if detach:
            start_detached(config)
            ready()
        else:
            configure_logging("supervisor", "WARNING")
            asyncio.run(serve(config, ready, _print_stopping))
            _show_stopped(config.state)


def down(state: State = None) -> None:
    """Stop the stack. Services finish their work or hand it back."""
    import os
    import signal

    from gradbus.embedded import StateFolder

    folder = StateFolder(_state(state))
    owner = folder.owner()
    if not owner:
        typer.echo(f"no stack runs on {folder.root}")
        return
    os.kill(owner, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while folder.owner():
        if time.monotonic() > deadline:
            raise StackError(f"the stack (pid {owner}) did not stop in {_STOP_SECONDS:.0f} s; see `gradbus status`, or kill it by its pid")
        time.sleep(0.1)
    _show_stopped(folder.root)


def status(state: State = None) -> None:
    """Show the stack's processes. Exit status 3 when no stack runs."""
    import asyncio

    from rich.console import Console

    from gradbus.embedded import StateFolder

    folder = StateFolder(_state(state))
    stack = folder.read("stack.json")
    if not folder.owner() or not stack:
        typer.echo(f"no stack runs on {folder.root}; start one with `gradbus up`")
        raise typer.Exit(3)
    Console().print(_table(stack, asyncio.run(_readiness(stack["processes"]))))
    typer.echo(f"API {stack['url']}   logs {folder.logs}   supervisor pid {stack['pid']}")


def _state(given: Path | None) -> Path:
    from gradbus.embedded.state import DEFAULT_STATE

    return given or DEFAULT_STATE


def _show_ready(state: Path, seconds: float, *, detached: bool) -> None:
    from rich.console import Console

    from gradbus.embedded import DEFAULT_STATE, StateFolder

    folder = StateFolder(state)
    stack = folder.read("stack.json")
    option = "" if state == DEFAULT_STATE else f" --state {state}"
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


def _print_stopping() -> None:
    with contextlib.suppress(OSError):  # a closed terminal stops the stack too, without a message
        print("\nstopping: services finish their work or hand it back", flush=True)


def _show_stopped(state: Path) -> None:
    typer.echo(f"stopped; all state is kept in {state.absolute()}")


async def _readiness(processes: dict[str, Any]) -> dict[str, bool | None]:
    """Name to readiness; None for the servers, which have no /readyz."""
    import asyncio

    from gradbus.embedded.probes import service_ready

    asked = {name: entry["health_port"] for name, entry in processes.items() if entry["health_port"]}
    answers = await asyncio.gather(*(service_ready(port)() for port in asked.values()))
    return dict.fromkeys(processes) | dict(zip(asked, answers, strict=True))


def _table(stack: dict[str, Any], ready: dict[str, bool | None]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("process", "state", "ready"):
        table.add_column(column)
    for column in ("pid", "restarts", "MB", "uptime"):
        table.add_column(column, justify="right")
    marks = {True: "[green]yes[/]", False: "[red]no[/]", None: "[dim]-[/]"}
    for name, entry in stack["processes"].items():
        colour = "green" if entry["state"] == "running" else "red"
        pid, restarts = entry["pid"], entry["restarts"]
        uptime = _duration(time.time() - entry["started"]) if pid else "-"
        table.add_row(name, f"[{colour}]{entry['state']}[/]", marks[ready[name]], str(pid or "-"), str(restarts), _memory(pid), uptime)
    return table


def _memory(pid: int | None) -> str:
    """Resident memory in MB; a dash on systems without /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "-"
    kilobytes = next((line.split()[1] for line in lines if line.startswith("VmRSS:")), None)
    return f"{int(kilobytes) / 1024:.0f}" if kilobytes else "-"


def _duration(seconds: float) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    if hours:
        return f"{hours:.0f} h {minutes % 60:.0f} min"
    return f"{minutes:.0f} min {seconds % 60:.0f} s" if minutes else f"{seconds:.0f} s"

"""The subcommand `status`: the processes of the embedded stack, or the workers of the gateway that GRADBUS_URL names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gradbus.cli.options import State
from gradbus.cli.output import AsJson, print_json, printable

if TYPE_CHECKING:
    from rich.table import Table

    from gradbus.client import Client
    from gradbus.resources.workers import WorkerResource

_NOT_RUNNING = 3
Json = dict[str, Any]


def status(state: State = None, as_json: AsJson = False) -> None:
    """Show the stack's processes, or the workers of the gateway at GRADBUS_URL. Exit status 3 when it does not run."""
    if state is None and (os.environ.get("GRADBUS_URL") or os.environ.get("GRADBUS_KEY")):
        from gradbus.client import Client

        with Client.discover() as client:
            _show_gateway(client, as_json)
    else:
        _show_stack(state, as_json)


def _show_gateway(client: Client, as_json: bool) -> None:
    from gradbus.client import document

    is_ready = client.is_ready()
    workers = list(client.workers()) if is_ready else []
    if as_json:
        print_json({"object": "status", "url": client.url, "ready": is_ready, "workers": list(map(document, workers))})
    elif is_ready:
        from rich.console import Console

        Console().print(_worker_table(workers))
        typer.echo(f"API {client.url}")
    else:
        typer.echo(f"the gateway at {client.url} does not answer or is not ready; check GRADBUS_URL, and that it runs")
    if not is_ready:
        raise typer.Exit(_NOT_RUNNING)


def _show_stack(state: Path | None, as_json: bool) -> None:
    import asyncio

    from gradbus.embedded import DEFAULT_STATE, StateFolder

    folder = StateFolder(state or DEFAULT_STATE)
    stack = folder.read("stack.json")
    if not folder.owner() or not stack:
        if as_json:
            print_json({"object": "status", "state_folder": str(folder.root), "ready": False, "processes": {}})
        else:
            typer.echo(f"no stack runs on {folder.root}; start one with `gradbus up`")
        raise typer.Exit(_NOT_RUNNING)
    readiness = asyncio.run(_readiness(stack["processes"]))
    if as_json:
        processes = {name: {**entry, "ready": readiness[name]} for name, entry in stack["processes"].items()}
        print_json({"object": "status", "state_folder": str(folder.root), **stack, "processes": processes})
        return
    from rich.console import Console

    Console().print(_process_table(stack, readiness))
    typer.echo(f"API {stack['url']}   logs {folder.logs}   supervisor pid {stack['pid']}")


async def _readiness(processes: dict[str, Any]) -> dict[str, bool | None]:
    """Name to readiness; None for the servers, which have no /readyz."""
    import asyncio

    from gradbus.embedded.probes import service_ready

    asked = {name: entry["health_port"] for name, entry in processes.items() if entry["health_port"]}
    answers = await asyncio.gather(*(service_ready(port)() for port in asked.values()))
    return dict.fromkeys(processes) | dict(zip(asked, answers, strict=True))


def _table(left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in left:
        table.add_column(column)
    for column in right:
        table.add_column(column, justify="right")
    return table


def _worker_table(workers: list[WorkerResource]) -> Table:
    from rich.markup import escape

    table = _table(("worker", "role", "run", "note"), ("version",))
    for worker in workers:
        version = "-" if worker.version < 0 else str(worker.version)
        note = escape(printable(worker.trouble or worker.preparing))
        table.add_row(worker.worker, worker.role, worker.run_id or "-", note or "-", version)
    return table


def _process_table(stack: Json, ready: dict[str, bool | None]) -> Table:
    table = _table(("process", "state", "ready"), ("pid", "restarts", "MB", "uptime"))
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

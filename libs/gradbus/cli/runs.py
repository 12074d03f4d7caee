"""Subcommands that act on runs: run, pause, resume, cancel, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradbus.cli.options import RunId, State, connect, find_run, state_option


def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Run spec.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it; exit status 0 succeeded, 1 failed, 3 cancelled.")] = False,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a field of the spec.")] = None,
    state: State = None,
) -> None:
    """Submit a run. Uploads the model, data and grader files that the spec names."""
    from gradbus.client import load_spec

    body = load_spec(spec, changes or ())
    with connect(state) as client:
        submitted = client.submit(body, spec.parent)
        typer.echo(f"run {submitted['id']} ({submitted['name']}) is {submitted['state']}")
        if not follow:
            typer.echo(f"follow it: gradbus show {submitted['id']} --follow{state_option(state)}")
            return
        from gradbus.cli.follow import follow_run

        raise typer.Exit(follow_run(client, submitted["id"], state_option(state)))


def pause(run_id: RunId, state: State = None) -> None:
    """Pause a run within two steps."""
    with connect(state) as client:
        _print_state(client.pause(find_run(client, run_id)["id"]))


def resume(run_id: RunId, state: State = None) -> None:
    """Resume a paused run."""
    with connect(state) as client:
        _print_state(client.resume(find_run(client, run_id)["id"]))


def cancel(run_id: RunId, state: State = None) -> None:
    """Cancel a run. It cannot be resumed."""
    with connect(state) as client:
        _print_state(client.cancel(find_run(client, run_id)["id"]))


def export(
    run_id: RunId,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the Hugging Face model into.")],
    version: Annotated[int | None, typer.Option(help="Policy version; default: the newest.")] = None,
    adapters: Annotated[bool, typer.Option("--adapters", help="Write only the LoRA adapters, as a folder that peft loads.")] = False,
    state: State = None,
) -> None:
    """Export a trained model as a folder that transformers loads."""
    with connect(state) as client:
        written = client.export(find_run(client, run_id)["id"], folder, version, adapters)
    kind = "final version" if written["final"] else "version"
    typer.echo(f"wrote {kind} {written['version']} of {written['run_id']} to {folder} ({len(written['files'])} files)")


def _print_state(answer: dict[str, object]) -> None:
    typer.echo(f"run {answer['id']} is {answer['state']}, requested: {answer['desired']}")

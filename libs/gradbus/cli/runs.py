"""Verbs that change something: run, pause, resume, cancel, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradbus.cli.options import RunId, State, connect, find_run, state_option


def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="The run spec.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it; exit status 0 succeeded, 1 failed, 3 cancelled.")] = False,
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Replace a field.")] = None,
    state: State = None,
) -> None:
    """Submit a run: the model, data and grader files it names are uploaded."""
    from gradbus.client import load_spec

    body = load_spec(spec, changes or ())
    with connect(state) as client:
        submitted = client.submit(body, spec.parent)
        typer.echo(f"run {submitted['id']} ({submitted['name']}) is {submitted['state']}")
        if not follow:
            typer.echo(f"watch it: gradbus show {submitted['id']} --follow{state_option(state)}")
            return
        from gradbus.cli.follow import follow_run

        raise typer.Exit(follow_run(client, submitted["id"], state_option(state)))


def pause(run_id: RunId, state: State = None) -> None:
    """Pause a run; it stops within two steps."""
    with connect(state) as client:
        _say(client.pause(find_run(client, run_id)["id"]))


def resume(run_id: RunId, state: State = None) -> None:
    """Resume a paused run where it stopped."""
    with connect(state) as client:
        _say(client.resume(find_run(client, run_id)["id"]))


def cancel(run_id: RunId, state: State = None) -> None:
    """Cancel a run for good."""
    with connect(state) as client:
        _say(client.cancel(find_run(client, run_id)["id"]))


def export(
    run_id: RunId,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the Hugging Face folder is written.")],
    version: Annotated[int | None, typer.Option(help="Policy version; the newest by default.")] = None,
    adapters: Annotated[bool, typer.Option("--adapters", help="The trained adapters alone, as a folder that peft loads.")] = False,
    state: State = None,
) -> None:
    """Write a trained model as a folder that transformers loads."""
    with connect(state) as client:
        written = client.export(find_run(client, run_id)["id"], folder, version, adapters)
    kind = "final version" if written["final"] else "version"
    typer.echo(f"wrote {kind} {written['version']} of {written['run_id']} to {folder} ({len(written['files'])} files)")


def _say(answer: dict[str, object]) -> None:
    typer.echo(f"run {answer['id']} is {answer['state']}, wanted: {answer['desired']}")

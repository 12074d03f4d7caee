"""Verbs that only look: runs, show, samples, events."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gradbus.cli.format import figures, number, run_line
from gradbus.cli.options import RunId, State, connect, find_run, state_option

_CHARTED = ("reward", "loss", "entropy", "grad_norm")
AsJson = Annotated[bool, typer.Option("--json", help="The gateway's answer as JSON.")]


def runs(limit: Annotated[int, typer.Option(min=1, max=1000)] = 20, as_json: AsJson = False, state: State = None) -> None:
    """List runs, newest first."""
    with connect(state) as client:
        page = client.runs(limit=limit)
    if as_json:
        _print_json(page)
        return
    for run in page["data"]:
        typer.echo(run_line(run))
    if not page["data"]:
        typer.echo("no runs yet; submit one with `gradbus run SPEC.toml`")
    _say_more(page, "a larger --limit shows older ones")


def show(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it as `gradbus run --follow` does.")] = False,
    as_json: AsJson = False,
    state: State = None,
) -> None:
    """Show a run: state, progress and spec."""
    with connect(state) as client:
        run = client.run(find_run(client, run_id)["id"])
        if follow:
            from gradbus.cli.follow import follow_run

            raise typer.Exit(follow_run(client, run["id"], state_option(state)))
    if as_json:
        _print_json(run)
        return
    typer.echo(f"{run['id']}  {run['name']}")
    typer.echo(f"state       {run['state']} (wanted: {run['desired']})")
    for label in ("reason", "waiting_for"):
        if run[label]:
            typer.echo(f"{label.replace('_', ' '):<12}{run[label]}")
    typer.echo(f"progress    {figures(run)}")
    typer.echo(f"created     {run['created_at']}   finished {run['finished_at'] or '-'}")
    typer.echo("spec")
    typer.echo(json.dumps(run["spec"], indent=2, ensure_ascii=False))


def samples(
    run_id: RunId,
    step: Annotated[int | None, typer.Option(min=0, help="Default: the newest trained step.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="One group.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 8,
    as_json: AsJson = False,
    state: State = None,
) -> None:
    """Show what the model said and how it was judged."""
    with connect(state) as client:
        run = client.run(find_run(client, run_id)["id"])
        query = {"step": step, "index": index, "limit": limit}
        if step is None and index is None and run["spec"]["schedule"]["mode"] == "fixed_lag":
            query["step"] = max(0, run["progress"]["step"] - 1)
        page = client.samples(run["id"], **{name: value for name, value in query.items() if value is not None})
    if as_json:
        _print_json(page)
        return
    for sample in page["data"]:
        _print_sample(sample)
    if not page["data"]:
        typer.echo("no samples there yet")
    _say_more(page, "a larger --limit shows them")


def events(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events above this id.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    state: State = None,
) -> None:
    """Show a run's history."""
    with connect(state) as client:
        found = find_run(client, run_id)["id"]
        page = {} if follow else client.events(found, after, limit)
        for event in client.follow_events(found, after) if follow else page["data"]:
            typer.echo(json.dumps(event) if as_json else _event_line(event))
    if not follow and not page["data"]:
        typer.echo("no events there yet", err=True)
    _say_more(page, f"`gradbus events {found} --after {page.get('next_after')}{state_option(state)}` goes on")


def _event_line(event: dict[str, Any]) -> str:
    mark = "" if event["level"] == "info" else f"{event['level'].upper()} "
    charted = [f"  {name} {number(event['data'].get(name))}" for name in _CHARTED] if event["type"] == "metrics" else []
    return f"{event['id']:>8}  {event['created_at'][11:19]}  {event['type']:<12}  {mark}{event['message']}{''.join(charted)}"


def _print_sample(sample: dict[str, Any]) -> None:
    versions = ", ".join(f"{span['version']}" for span in sample["versions"])
    parts = "".join(f"  {name} {number(value)}" for name, value in sample["components"].items())
    step = "" if sample["step"] is None else f"step {sample['step']}  "
    typer.echo(f"{sample['id']}  {step}version {versions}  reward {number(sample['reward'])}{parts}  {sample['verdict']}")
    typer.echo(f"  prompt   {sample['prompt']!r}")
    typer.echo(f"  response {sample['text']!r} ({sample['finish_reason']})")
    if sample["reason"]:
        typer.echo(f"  reason   {sample['reason']}")


def _say_more(page: dict[str, Any], how: str) -> None:
    """On the side, so that what is piped stays what was asked for."""
    if page.get("has_more"):
        typer.echo(f"there are more; {how}", err=True)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))

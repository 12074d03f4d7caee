"""The subcommand that deletes finished runs."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradbus.cli.options import State, connect, state_option
from gradbus.cli.output import JsonLines, print_json_line
from gradbus.errors import NotFoundError, StackError

if TYPE_CHECKING:
    from gradbus.client import Client
    from gradbus.resources.runs import RunSummary

_AGE = re.compile(r"(\d{1,6})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


def delete(
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Run ids or their beginnings, names, or `last`.")] = None,
    finished_before: Annotated[
        str, typer.Option(metavar="AGE|DATE", help="Also every run that ended before: an age such as 30d, 12h or 90m, or a date.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted.")] = False,
    state: State = None,
    as_json: JsonLines = False,
) -> None:
    """Delete finished runs with their events, samples, versions and checkpoints. There is no way back."""
    if not (run_ids or finished_before):
        raise StackError("nothing to delete; name runs, or give --finished-before")
    moment = _moment(finished_before) if finished_before else None
    with connect(state) as client:
        found = [client.find(given) for given in run_ids or ()]
        found += _finished_before(client, moment) if moment else []
        for run in {run.id: run for run in found}.values():
            if dry_run:
                _show_plan(run, state, as_json=as_json)
                continue
            _delete(client, run.id)
            if as_json:
                print_json_line({"object": "run", "id": run.id, "deleted": True})
            else:
                typer.echo(f"run {run.id} is deleted")
    if not found and not as_json:
        typer.echo("no run has ended before that")


def _delete(client: Client, run_id: str) -> None:
    """Deletes a run that was there a moment ago."""
    with contextlib.suppress(NotFoundError):  # retention was faster, or the gateway's first answer was lost and the request repeated
        client.delete(run_id)


def _show_plan(run: RunSummary, state: Path | None, *, as_json: bool) -> None:
    """Prints whether the gateway would delete the run."""
    is_over = run.finished_at is not None
    if as_json:
        print_json_line({"object": "run", "id": run.id, "deleted": False, "deletable": is_over})
    elif is_over:
        typer.echo(f"run {run.id} would be deleted")
    else:
        advice = f"cancel it first: gradbus cancel {run.id}{state_option(state)}"
        typer.echo(f"run {run.id} would not be deleted, because it has not ended ({run.state}); {advice}")


def _finished_before(client: Client, moment: datetime) -> list[RunSummary]:
    return [run for run in client.runs() if _ended(run, moment)]


def _ended(run: RunSummary, moment: datetime) -> bool:
    return run.finished_at is not None and run.finished_at < moment


def _moment(given: str) -> datetime:
    """The moment that an age or a date names. Raises StackError."""
    try:
        if age := _AGE.fullmatch(given):
            return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        moment = datetime.fromisoformat(given)
        return moment if moment.tzinfo else moment.astimezone()
    except (OverflowError, ValueError):
        raise StackError(f"{given!r} is no age and no date; give for example 30d, 12h, 2026-11-01 or 2026-11-01T08:00+01:00") from None

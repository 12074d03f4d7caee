"""Subcommand fork."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gradbus.cli.options import RunId, State, connect, taking
from gradbus.cli.output import JsonLines
from gradbus.cli.runs import Submitting


@dataclass(frozen=True, slots=True)
class ForkOptions:
    """Options of `gradbus fork`."""

    run_id: RunId
    at: Annotated[int | None, typer.Option("--at", min=0, metavar="STEP", help="Checkpoint to begin with; default: the newest.")] = None
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="A setting to change.")] = None
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it; exit status 0 succeeded, 1 failed, 3 cancelled.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Have everything checked, and create no run.")] = False
    state: State = None
    as_json: JsonLines = False


@taking(ForkOptions)
def fork(options: ForkOptions) -> None:
    """Begin another run from a version of a run, with some settings changed.

    It has the run's spec, the steps that were left after the version, and a new optimiser.
    """
    from gradbus.client import with_overrides

    submitting = Submitting(options.follow, options.dry_run, options.state, options.as_json)
    with connect(options.state) as client:
        fork_of: dict[str, Any] = {"run": client.find(options.run_id).id}
        if options.at is not None:
            fork_of["version"] = options.at
        submitting.submit(client, {**with_overrides({}, options.changes or ()), "fork_of": fork_of}, Path.cwd())

"""Subcommand lineage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from gradbus.cli.options import RunId, State, connect, find_run
from gradbus.cli.output import AsJson, print_json, print_notice, printable

_INDENT: Final = "   "
_VERBS: Final = {"reward_model": "scored by", "teacher": "taught by"}
"""What a version of another run does for a run that does not start from it."""


def lineage(
    run_id: RunId,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Newest runs that start from it.")] = 100,
    as_json: AsJson = False,
    state: State = None,
) -> None:
    """Show which runs a run's model comes from, and which runs start from it."""
    with connect(state) as client:
        run = find_run(client, run_id)
        found = client.lineage(run["id"], limit)
    if as_json:
        print_json(found)
        return
    for line in tree(found, run["state"]):
        typer.echo(printable(line))
    if found["has_more"]:
        print_notice("there are more runs that start from it; raise --limit to see them")


def tree(found: dict[str, Any], state: str) -> Iterator[str]:
    """The lines of a lineage: the first run's model, then each run below the one that it starts from."""
    yield found["base"]
    taken, depth = "", 0
    for run in found["ancestors"]:
        yield _line(depth, run["id"], run["name"], run["state"], taken)
        taken, depth = f"  from version {run['version']}", depth + 1
    yield _line(depth, found["run_id"], found["name"], state, taken) + "  *"
    for role, verb in _VERBS.items():
        for run in found[role][-1:]:
            yield f"{_INDENT * (depth + 1)}{verb} version {run['version']} of {run['id']}  {run['name']}  {run['state']}"
    for run in found["children"]:
        verb = _VERBS.get(run["role"], "from")
        yield _line(depth + 1, run["id"], run["name"], run["state"], f"  {verb} version {run['version']}")


def _line(depth: int, run_id: str, name: str, state: str, taken: str) -> str:
    return f"{_INDENT * depth}└─ {run_id}  {name}  {state}{taken}"

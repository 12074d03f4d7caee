"""Subcommand reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradbus.cli.options import RunId, State, connect, taking
from gradbus.cli.output import AsJson, print_json, printable
from gradbus.errors import SettingsError

if TYPE_CHECKING:
    from gradbus.resources.reward import RewardResource


@dataclass(frozen=True, slots=True)
class RewardOptions:
    """Options of `gradbus reward`."""

    run_id: RunId
    change: Annotated[Path | None, typer.Option("--change", metavar="REWARD.toml", help="A [reward] with the scorer from now on.")] = None
    from_group: Annotated[int | None, typer.Option(min=0, metavar="INDEX", help="First group that it may judge; default: the next.")] = None
    state: State = None
    as_json: AsJson = False


@taking(RewardOptions)
def reward(options: RewardOptions) -> None:
    """Show what judges a run's samples, or change it while the run goes on.

    The new scorer judges from the next group on that is not dispatched, training and held-out rows alike. No group is judged by two.
    """
    from gradbus.client import document

    with connect(options.state) as client:
        if options.change is None:
            if options.from_group is not None:
                raise SettingsError("--from-group is of a new scorer; name its file by --change")
            found = client.reward(options.run_id)
        else:
            scorer = _scorer(options.change) | ({} if options.from_group is None else {"from_group": options.from_group})
            found = client.change_reward(options.run_id, scorer, options.change.parent)
    if options.as_json:
        print_json(document(found))
        return
    for line in _lines(found):
        typer.echo(printable(line))


def _scorer(path: Path) -> dict[str, Any]:
    """The section `[reward]` of a file. Raises SettingsError for a file without one."""
    from gradbus.client import load_spec

    section = load_spec(path).get("reward")
    if not isinstance(section, dict):
        raise SettingsError(f"{path} has no section [reward]; write the new scorer into one, as in a run spec")
    return section


def _lines(found: RewardResource) -> Iterator[str]:
    for turn in found.scorers:
        begins = "from the next group on" if turn.from_group is None else f"from group {turn.from_group} on"
        yield f"{begins}: {turn.scorer.name}"

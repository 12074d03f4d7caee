"""Subcommand lineage: of a run, or of one of its versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gradbus.cli.format import number
from gradbus.cli.options import State, connect
from gradbus.cli.output import AsJson, print_json, print_notice, printable
from gradbus.errors import SettingsError

if TYPE_CHECKING:
    from gradbus.client import Client
    from gradbus.resources.lineage import LineageResource, RelatedRun
    from gradbus.resources.version_lineage import TrainedGroup, VersionLineageResource

_INDENT: Final = "   "
_VERBS: Final = {"reward_model": "scored by", "teacher": "taught by"}
"""What a version of another run does for a run that does not start from it."""
_PROMPT_CHARACTERS: Final = 60
_NEWEST: Final = "last"
"""The newest trained version."""


def lineage(
    run: Annotated[str, typer.Argument(metavar="ID[@VERSION]", help="Run id, its beginning, name, or `last`; of it, a step or `last`.")],
    step: Annotated[int | None, typer.Option(min=0, help="Of a version: only the groups of this step. Default: of all before it.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Newest runs that start from it; of a version, the first groups.")] = 100,
    as_json: AsJson = False,
    state: State = None,
) -> None:
    """Show which runs a run's model comes from and which start from it, or the groups, prompts and scorers that made a version."""
    given, at, version = run.partition("@")
    if at and version != _NEWEST and not (version.isascii() and version.isdecimal()):
        raise SettingsError(f"{version!r} is no version of {given}; give its step, as in {given}@40, or {given}@{_NEWEST}")
    if step is not None and not at:
        raise SettingsError(f"--step is of a version; name one, as in {given}@{step + 1}, which step {step} makes")
    with connect(state) as client:
        if at:
            asked = {"limit": limit} | ({} if step is None else {"step": step})
            run_id, at_step = _named(client, given, version)
            _show_version(client.version_lineage(run_id, at_step, **asked), as_json)
        else:
            _show_run(client, given, limit, as_json)


def _named(client: Client, given: str, version: str) -> tuple[str, int]:
    """The run and the number of its version."""
    if version != _NEWEST:
        return given, int(version)
    run = client.run(given)
    return run.id, run.progress.step


def _show_run(client: Client, given: str, limit: int, as_json: bool) -> None:
    from gradbus.client import document

    run = client.find(given)
    found = client.lineage(run.id, limit)
    if as_json:
        print_json(document(found))
        return
    for line in tree(found, run.state):
        typer.echo(printable(line))
    if found.has_more:
        print_notice("there are more runs that start from it; raise --limit to see them")


def _show_version(found: VersionLineageResource, as_json: bool) -> None:
    from gradbus.client import document

    if as_json:
        print_json(document(found))
        return
    for line in version_lines(found):
        typer.echo(printable(line))
    if found.has_more:
        print_notice("there are more groups; raise --limit, or select those of one step by --step")


def tree(found: LineageResource, state: str) -> Iterator[str]:
    """The lines of a lineage: the first run's model, then each run below the one that it starts from."""
    yield found.base
    taken, depth = "", 0
    for run in found.ancestors:
        yield _line(depth, run.id, run.name, run.state, taken)
        taken, depth = f"  from version {run.version}", depth + 1
    yield _line(depth, found.run_id, found.name, state, taken) + "  *"
    of_role: dict[str, list[RelatedRun]] = {"reward_model": found.reward_model, "teacher": found.teacher}
    for role, verb in _VERBS.items():
        for run in of_role[role][-1:]:
            yield f"{_INDENT * (depth + 1)}{verb} version {run.version} of {run.id}  {run.name}  {run.state}"
    for run in found.children:
        verb = _VERBS.get(run.role, "from")
        yield _line(depth + 1, run.id, run.name, run.state, f"  {verb} version {run.version}")


def version_lines(found: VersionLineageResource) -> Iterator[str]:
    """The lines of a version's lineage: what it is and begins with, what judged its samples, and a line for each group."""
    yield f"version {found.version} of {found.run_id}  {found.name}  {found.digest or 'not published'}"
    parent = found.parent
    yield f"from     {found.base}" + (f", by version {parent.version} of {parent.run} ({parent.name})" if parent else "")
    for scorer in found.scorers:
        since = f" from group {scorer.from_group} on" if scorer.from_group else ""
        yield f"scorer   {scorer.section}: {scorer.kind} {scorer.name}{since}  {scorer.version}"
    for group in found.groups:
        yield _group_line(group)


def _group_line(group: TrainedGroup) -> str:
    sampled = f"by {', '.join(map(str, group.sampled_by))}" if group.sampled_by else "given"
    reward = "" if group.reward is None else f"  reward {number(group.reward)}"
    shown = group.prompt[:_PROMPT_CHARACTERS] + ("…" if len(group.prompt) > _PROMPT_CHARACTERS else "")
    reason = f" ({group.reason})" if group.reason else ""
    left = f"step {group.step}  group {group.index}  row {group.row_index}  {group.verdict}{reason}"
    return f"{left}  {group.samples} samples {sampled}{reward}  {shown!r}"


def _line(depth: int, run_id: str, name: str, state: str, taken: str) -> str:
    return f"{_INDENT * depth}└─ {run_id}  {name}  {state}{taken}"

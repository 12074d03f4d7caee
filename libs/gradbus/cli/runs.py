"""Subcommands that act on runs: run, tag, pause, resume, cancel, export."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradbus.cli.options import RunId, State, connect, state_option, taking
from gradbus.cli.output import AsJson, JsonLines, print_json, print_json_line, print_notice, printable
from gradbus.errors import GradbusError, SettingsError

if TYPE_CHECKING:
    from gradbus.client import AnnotationChanges, Client
    from gradbus.resources.runs import RunResource


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Options of `gradbus run`."""

    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Run spec.")]
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it; exit status 0 succeeded, 1 failed, 3 cancelled.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Have everything checked, and create no run.")] = False
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Queue in which it waits for a trainer.", show_default=False)] = None
    tags: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Tag of the run; may be repeated.")] = None
    note: Annotated[str, typer.Option(metavar="TEXT", help="Note on the run.", show_default=False)] = ""
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a field of the spec.")] = None
    state: State = None
    as_json: JsonLines = False


@taking(SubmitOptions)
def run(options: SubmitOptions) -> None:
    """Submit a run. Uploads the model, data and grader files that the spec names."""
    from gradbus.client import load_spec

    submitting = Submitting(options.follow, options.dry_run, options.state, options.as_json, options.tags or (), options.note)
    body = load_spec(options.spec, options.changes or ())
    if options.queue is not None:
        body["queue"] = options.queue
    with connect(options.state) as client:
        submitting.submit(client, body, options.spec.parent)


@dataclass(frozen=True, slots=True)
class Submitting:
    """How a submission is shown, and whether it is one.

    Raises SettingsError for options that exclude each other, and for tags and a note that no run may have: before anything is sent.
    """

    follow: bool
    dry_run: bool
    state: Path | None
    as_json: bool
    tags: Sequence[str] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if self.dry_run and self.follow:
            raise SettingsError("--dry-run creates no run that --follow could follow; leave one of them out")
        if self.tags or self.note:
            _check_annotations(self.tags, self.note)

    def submit(self, client: Client, body: dict[str, Any], folder: Path) -> None:
        """Submits the body, whose files are below `folder`. Followed, it ends with the status that the run's end has."""
        from gradbus.client import document

        if self.dry_run:
            checked = client.check(body, folder)
            print_json_line(document(checked)) if self.as_json else typer.echo(
                f"the spec of {checked.spec.name} is valid; no run was created"
            )
            return
        submitted = client.submit(body, folder)
        if not self.as_json:
            typer.echo(f"run {submitted.id} ({submitted.name}) is {submitted.state}")
        if self.tags or self.note:
            submitted = self._annotate(client, submitted)
        if self.as_json:
            print_json_line(document(submitted))
        if self.follow:
            from gradbus.cli.follow import follow_run, follow_run_as_json

            if self.as_json:
                raise typer.Exit(follow_run_as_json(client, submitted.id))
            raise typer.Exit(follow_run(client, submitted.id, state_option(self.state)))
        if not self.as_json:
            typer.echo(f"follow it: gradbus show {submitted.id} --follow{state_option(self.state)}")

    def _annotate(self, client: Client, run: RunResource) -> RunResource:
        """The run with its tags and note. If they are not written, the run goes on, and its user has to know it."""
        try:
            return client.annotate(run.id, add_tags=self.tags, note=self.note)
        except (GradbusError, KeyboardInterrupt):
            if self.as_json:
                from gradbus.client import document

                print_json_line(document(run))
            note = ["--note", self.note] if self.note else []
            again = shlex.join(["gradbus", "tag", run.id, *self.tags, *note]) + state_option(self.state)
            print_notice(f"run {run.id} was created, but not its tags and its note; write them again: {again}")
            raise


def _check_annotations(tags: Sequence[str], note: str) -> None:
    """Raises SettingsError for what the gateway would refuse."""
    from pydantic import ValidationError

    from gradbus.control.annotations import AnnotationChange

    try:
        AnnotationChange(add_tags=tuple(tags), note=note)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, *at = first["loc"]
        option = "--note" if field == "note" else " ".join(["--tag", *(repr(tags[index]) for index in at if isinstance(index, int))])
        raise SettingsError(f"{option}: {first['msg']}; a run may have 32 tags and a note of 4000 characters: submit it again") from None


@dataclass(frozen=True, slots=True)
class TagOptions:
    """Options of `gradbus tag`."""

    run_id: RunId
    add: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags to add.", show_default=False)] = None
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="TAG", help="Tag to remove; may be repeated.")] = None
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Note in place of the one that there is.", show_default=False)] = None
    state: State = None
    as_json: AsJson = False


@taking(TagOptions)
def tag(options: TagOptions) -> None:
    """Tag a run, write a note on it, or show both. Nothing that the run computes changes."""
    from gradbus.cli.format import annotation_lines
    from gradbus.client import document

    changes: AnnotationChanges = {"add_tags": options.add or [], "remove_tags": options.remove or []}
    if options.note is not None:
        changes["note"] = options.note
    with connect(options.state) as client:
        is_asked = options.add or options.remove or options.note is not None
        found = client.annotate(options.run_id, **changes) if is_asked else client.run(options.run_id)
    if options.as_json:
        print_json(document(found))
        return
    for line in annotation_lines(found) or ["no tags and no note"]:
        typer.echo(printable(line))


def pause(run_id: RunId, state: State = None, as_json: AsJson = False) -> None:
    """Pause a run within two steps."""
    with connect(state) as client:
        _print_run(client.pause(run_id), as_json)


def resume(run_id: RunId, state: State = None, as_json: AsJson = False) -> None:
    """Resume a paused run."""
    with connect(state) as client:
        _print_run(client.resume(run_id), as_json)


def cancel(run_id: RunId, state: State = None, as_json: AsJson = False) -> None:
    """Cancel a run. It cannot be resumed."""
    with connect(state) as client:
        _print_run(client.cancel(run_id), as_json)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of `gradbus export`."""

    run_id: RunId
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder to write the Hugging Face model into.")]
    version: Annotated[int | None, typer.Option(min=0, help="Policy version; default: the newest.")] = None
    adapters: Annotated[bool, typer.Option("--adapters", help="Write only the LoRA adapters, as a folder that peft loads.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into a folder that is not empty; its other files stay.")] = False
    state: State = None
    as_json: AsJson = False


@taking(ExportOptions)
def export(options: ExportOptions) -> None:
    """Export a trained model as a folder that transformers loads."""
    from gradbus.client import document

    with connect(options.state) as client:
        written = client.export(options.run_id, options.folder, options.version, adapters=options.adapters, overwrite=options.overwrite)
    if options.as_json:
        print_json({**document(written), "folder": str(options.folder.absolute())})
        return
    kind = "final version" if written.final else "version"
    typer.echo(f"wrote {kind} {written.version} of {written.run_id} to {options.folder} ({len(written.files)} files)")


def _print_run(run: RunResource, as_json: bool) -> None:
    from gradbus.client import document

    if as_json:
        print_json(document(run))
    else:
        typer.echo(f"run {run.id} is {run.state}, requested: {run.desired}")

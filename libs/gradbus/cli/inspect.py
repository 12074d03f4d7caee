"""Subcommands that only read: runs, show, samples, open."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from gradbus.cli.format import annotation_lines, figures, number, run_line
from gradbus.cli.options import RunId, State, connect, state_option, taking
from gradbus.cli.output import AsJson, print_json, print_notice, printable
from gradbus.errors import SettingsError

if TYPE_CHECKING:
    from gradbus.client import Client, SampleSelection
    from gradbus.resources.episodes import EpisodeResource
    from gradbus.resources.page import Page
    from gradbus.resources.runs import RunResource, RunSummary
    from gradbus.resources.samples import SampleResource

_FIELD_CHARACTERS: Final = 200


def runs(
    tags: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Only runs with this tag; repeated: all of them.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    as_json: AsJson = False,
    state: State = None,
) -> None:
    """List runs, newest first."""
    from gradbus.client import document

    with connect(state) as client:
        page = client.runs_page(limit=limit, tags=tags or ())
    if as_json:
        print_json(document(page))
        return
    for run in page.data:
        typer.echo(run_line(run))
    if not page.data:
        none_yet = "no runs yet; submit one with `gradbus run SPEC.toml`"
        typer.echo("no run has these tags; `gradbus runs` lists all" if tags else none_yet)
    _print_more_hint(page, "raise --limit to see older runs")


def show(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow it as `gradbus run --follow` does.")] = False,
    as_json: AsJson = False,
    state: State = None,
) -> None:
    """Show a run's state, progress and spec."""
    from gradbus.client import document

    with connect(state) as client:
        run = client.run(run_id)
        if follow:
            from gradbus.cli.follow import follow_run, follow_run_as_json

            if as_json:
                raise typer.Exit(follow_run_as_json(client, run.id))
            raise typer.Exit(follow_run(client, run.id, state_option(state)))
    shown = document(run)
    if as_json:
        print_json(shown)
        return
    typer.echo(f"{run.id}  {run.name}")
    typer.echo(f"kind        {run.kind}")
    typer.echo(f"state       {run.state} (requested: {run.desired})")
    for label in ("reason", "waiting_for"):
        if shown[label]:
            typer.echo(f"{label.replace('_', ' '):<12}{printable(shown[label])}")
    for line in annotation_lines(run):
        typer.echo(printable(line))
    typer.echo(f"progress    {figures(run)}")
    typer.echo(f"created     {shown['created_at']}   finished {shown['finished_at'] or '-'}")
    typer.echo("spec")
    typer.echo(json.dumps(shown["spec"], indent=2, ensure_ascii=False))


class Verdict(StrEnum):
    """What became of a group."""

    TRAIN = "train"
    FILTERED = "filtered"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """Options of `gradbus samples`."""

    run_id: RunId
    step: Annotated[
        int | None, typer.Option(min=0, help="Step; default: the newest trained one, or all if they are searched or have no fixed groups.")
    ] = None
    index: Annotated[int | None, typer.Option(min=0, help="Index of a single group.")] = None
    text: Annotated[str | None, typer.Option("--search", metavar="TEXT", help="Only samples with it in prompt, response or reason.")] = None
    verdict: Annotated[Verdict | None, typer.Option(help="Only samples of groups with this verdict.")] = None
    min_reward: Annotated[float | None, typer.Option(help="Only samples with at least this reward.")] = None
    max_reward: Annotated[float | None, typer.Option(help="Only samples with at most this reward.")] = None
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 8
    as_json: AsJson = False
    state: State = None

    @property
    def selection(self) -> SampleSelection:
        """The conditions that are set, as parameters of the request."""
        names = ("step", "index", "text", "verdict", "min_reward", "max_reward")
        return cast("SampleSelection", {name: value for name in names if (value := getattr(self, name)) is not None})


@taking(SampleOptions)
def samples(options: SampleOptions) -> None:
    """Show prompts, responses and rewards, or which response of a pair is the chosen one."""
    from gradbus.client import document

    with connect(options.state) as client:
        run = client.run(options.run_id)
        selection = options.selection
        schedule = run.spec.schedule
        if not selection and (schedule.mode, schedule.dynamic_sampling) == ("fixed_lag", 1):
            selection["step"] = max(0, run.progress.step - 1)
        page = _found(client, run.id, options.limit, {"include": "item", **selection})
    if options.as_json:
        print_json(document(page))
        return
    for sample in page.data:
        _print_sample(sample, run)
    if not page.data:
        typer.echo(f"no such samples; the run is at step {run.progress.step} of {run.steps}" if options.selection else "no samples yet")
    _print_more_hint(page, "raise --limit to see them")


def _found(client: Client, run_id: str, limit: int, selection: SampleSelection) -> Page[SampleResource]:
    """The first samples; a page of a search ends early where it finds few."""
    page = client.samples_page(run_id, limit=limit, **selection)
    found = page.data
    while page.has_more and len(found) < limit:
        page = client.samples_page(run_id, page.next_after or "", limit - len(found), **selection)
        found += page.data
    return page.model_copy(update={"data": found})


def open_web_ui(
    run_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Run to open: its id, its name or `last`.")] = None,
    browser: Annotated[bool, typer.Option(help="Also open the link in a browser.")] = True,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Print a sign-in link to the web UI. It works once, within two minutes."""
    with connect(state) as client:
        link = client.sign_in_link(run_id or "")
    print_json({"object": "sign_in", "link": link}) if as_json else typer.echo(link)
    if browser and sys.stdout.isatty() and _has_desktop():
        import webbrowser

        webbrowser.open(link)


def episode(
    run_id: RunId,
    sample_id: Annotated[str, typer.Argument(metavar="SAMPLE", help="Id of a sample, as `gradbus samples` shows it: <group>.<number>.")],
    as_json: AsJson = False,
    state: State = None,
) -> None:
    """Show a sample of a run with an environment turn by turn, and why it ended."""
    index = sample_id.partition(".")[0]
    if not index.isdecimal():
        raise SettingsError(f"{sample_id!r} is not the id of a sample; give one such as 12.0, from `gradbus samples`")
    from gradbus.client import document

    with connect(state) as client:
        found = next((sample for sample in client.samples(run_id, index=int(index)) if sample.id == sample_id), None)
    if found is None:
        raise SettingsError(f"the run has no sample {sample_id} yet; see `gradbus samples`")
    if found.episode is None:
        raise SettingsError("the run has no environment, so its samples are single turns; see `gradbus samples`")
    print_json(document(found)) if as_json else _print_episode(found, found.episode)


def _print_episode(sample: SampleResource, played: EpisodeResource) -> None:
    typer.echo("  ".join([sample.id, *_judgement(sample), sample.verdict, played.end_reason]))
    typer.echo(f"  prompt       {sample.prompt!r}")
    for at, turn in enumerate(played.turns, start=1):
        where = f", sequence {turn.sequence + 1}" if turn.sequence else ""
        end = f"stopped at {turn.stop_text!r}" if turn.stop_text else turn.finish
        where += "" if turn.after_turn is None else f", without the thinking up to turn {turn.after_turn + 1}"
        typer.echo(f"  turn {at:<7} {turn.text!r} ({turn.end - turn.start} tokens, {end}{where})")
        for call in turn.calls:
            typer.echo(f"    call       {printable(call.name)} {printable(call.arguments)} ({call.status})")
        for message in turn.messages:
            typer.echo(f"    {message.role:<10} {message.content!r}")
        if turn.reward is not None:
            typer.echo(f"    reward     {number(turn.reward)}")
    if reason := played.reason or sample.reason:
        typer.echo(f"  reason       {printable(reason)}")


def _print_sample(sample: SampleResource, run: RunResource) -> None:
    step = [] if sample.step is None else [f"step {sample.step}"]
    label = [sample.label] if sample.label else []
    typer.echo("  ".join([sample.id, *step, *label, *(_judgement(sample) if run.kind == "rl" else ()), sample.verdict]))
    typer.echo(f"  prompt   {sample.prompt!r}")
    if run.kind == "rl" and (fields := _row_fields(sample.item or {}, run.spec.data.prompt)):
        typer.echo(f"  row      {fields}")
    typer.echo(f"  response {sample.text!r} ({sample.finish_reason})")
    if sample.reason:
        typer.echo(f"  reason   {printable(sample.reason)}")


def _row_fields(item: dict[str, Any], prompt: str) -> str:
    """What the scorer sees beside the prompt, as the right answer."""
    shown = {name: repr(value) for name, value in item.items() if name != prompt}
    cut = {name: text if len(text) <= _FIELD_CHARACTERS else f"{text[:_FIELD_CHARACTERS]}…" for name, text in shown.items()}
    return printable("  ".join(f"{name} {text}" for name, text in cut.items()))


def _judgement(sample: SampleResource) -> list[str]:
    """Of a response that a policy sampled; its reward, unless a teacher judges it and no scorer."""
    versions = ", ".join(dict.fromkeys(f"{span.version}" for span in sample.versions))
    parts = [f"{printable(name)} {number(value)}" for name, value in sample.components.items()]
    is_taught = sample.verdict == "train" and sample.reward_status == "none"
    return [f"version {versions}", *([] if is_taught else [f"reward {number(sample.reward)}"]), *parts]


def _print_more_hint(page: Page[RunSummary] | Page[SampleResource], how: str) -> None:
    if page.has_more:
        print_notice(f"there are more entries; {how}")


def _has_desktop() -> bool:
    """Whether there is a display. Without one, webbrowser would open a text browser in the terminal."""
    return sys.platform in {"darwin", "win32"} or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

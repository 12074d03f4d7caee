"""`gradbus data check`: reads the datasets of a spec before a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradbus.cli.options import taking
from gradbus.cli.output import AsJson, print_json, printable
from gradbus.errors import SettingsError, SpecError

if TYPE_CHECKING:
    from gradbus.datasets.check import PartReport
    from gradbus.spec import DataSpec, Sources
    from gradbus.tokenizer.encoder import PromptEncoder

app = typer.Typer(no_args_is_help=True, help="Datasets.")
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of `gradbus data check`."""

    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Run spec, of which [data] and the model's tokenizer are read.")]
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override a field of the spec.")] = None
    rows: Annotated[int, typer.Option(min=0, max=1000, help="Rows of each dataset that are shown.")] = 10
    encoded: Annotated[int, typer.Option(min=0, help="Rows of each dataset whose tokens are counted; all rows are checked.")] = 2000
    as_json: AsJson = False


@app.callback()
def data() -> None:
    """Datasets."""


@app.command()
@taking(CheckOptions)
def check(options: CheckOptions) -> None:
    """Read every row of a spec's datasets: what a run would see of them, with counts of tokens, and which rows it would refuse.

    Needs no stack. Exit status 1: a submission would be refused.
    """
    from gradbus.client import load_spec

    body = load_spec(options.spec, options.changes or ())
    reports = list(_reports(body, options))
    if options.as_json:
        print_json({"object": "data_check", "datasets": [asdict(report) for report in reports]})
    else:
        for report in reports:
            _print(report)
    if any(report.refused or not report.rows for report in reports):
        raise typer.Exit(1)


def _reports(body: Mapping[str, Any], options: CheckOptions) -> Iterator[PartReport]:
    from gradbus.client.dataset_files import dataset_files
    from gradbus.datasets.check import Check, PartReport, check_part
    from gradbus.datasets.prepare import DatasetFile, RowPlan
    from gradbus.spec.kinds import columns_of

    section, base = _section(body), options.spec.parent
    plan = RowPlan(columns=columns_of(body.get("kind", "rl"), section), names=section.columns, filter=section.filter)
    work = Check(plan, _encoder(body, base), options.rows, options.encoded)
    for name, sources, names, weight in parts_of(section):
        with tempfile.TemporaryDirectory(prefix="gradbus-data-") as scratch:
            files: list[DatasetFile] = []
            for at, source in enumerate([sources] if isinstance(sources, str) else sources):
                found = dataset_files(source, base, Path(scratch) / str(at))
                if found is None:
                    raise SettingsError(f"{name}: {source} is not on this machine; give a path relative to {base.absolute()}, or a url")
                files += [DatasetFile(path.name, path) for path in found]
            report = PartReport(name, len(files), weight)
            files = [DatasetFile("", files[0].path)] if len(files) == 1 else files
            check_part(report, files, replace(work, plan=plan.model_copy(update={"names": names})))
            yield report


def _section(body: Mapping[str, Any]) -> DataSpec:
    """The spec's section, whatever else the spec says. Raises SpecError with the faults of the section."""
    from gradbus.spec import parse_spec
    from gradbus.spec.kinds import Kind

    kind: Kind = body.get("kind", "rl")
    others = {"reward": {"service": "grpc://none:1"}} if kind == "rl" else {}
    try:
        spec = parse_spec(
            {"name": "check", "kind": kind, "model": {"path": "none"}, "data": body.get("data"), "schedule": {"steps": 1}, **others}
        )
    except SpecError as error:
        raise SpecError([fault for fault in error.faults if fault.path.startswith(("data", "kind"))] or error.faults) from None
    return spec.data


def parts_of(section: DataSpec) -> Iterator[tuple[str, Sources, Mapping[str, str], float | None]]:
    """(name, sources, names of columns, weight) of each dataset."""
    if section.train:
        yield "train", section.train, section.columns, None
    for at, part in enumerate(section.mixture):
        yield f"mixture.{at}", part.source or "", part.columns or section.columns, part.weight
    if section.eval:
        yield "eval", section.eval, section.columns, None


def _encoder(body: Mapping[str, Any], base: Path) -> PromptEncoder | None:
    """The tokenizer of the spec's model, if it is a folder of this machine."""
    from gradbus.client.dataset_files import local_path
    from gradbus.tokenizer.encoder import PromptEncoder, PromptLimits

    model, rollout = body.get("model"), body.get("rollout")
    folder = local_path(base, model.get("path")) if isinstance(model, Mapping) else None
    if folder is None:
        typer.echo("the model is not a folder of this machine: rows are shown as they are given, and no tokens are counted", err=True)
        return None
    given = rollout if isinstance(rollout, Mapping) else {}
    room = given.get("max_new_tokens", 128) if body.get("kind", "rl") == "rl" else 1
    return PromptEncoder(folder, PromptLimits(room, given.get("max_prompt_tokens"), tuple(given.get("stop_token_ids", ()))))


def _print(report: PartReport) -> None:
    weight = "" if report.weight is None else f", weight {report.weight:g}"
    typer.echo(f"{report.name}: {report.files} file{'s' if report.files != 1 else ''}{weight}")
    typer.echo(f"  rows       {report.rows:,} taken, {report.left_out:,} left out by the filter, {report.refused:,} refused")
    typer.echo(f"  columns    {printable(', '.join(report.columns))}")
    if report.tokens:
        fewest, middle, most = report.tokens
        typer.echo(f"  tokens     of a prompt: {fewest} to {most}, median {middle:g} (of {report.encoded:,} rows)")
    for row in report.shown:
        tokens = "" if row.prompt_tokens is None else f"  {row.prompt_tokens} tokens"
        answers = "".join(f", response of {count}" for count in row.response_tokens)
        typer.echo(f"  {row.where}{tokens}{answers}")
        typer.echo(f"    {printable(row.text[:_SHOWN_CHARACTERS])}{'…' if len(row.text) > _SHOWN_CHARACTERS else ''}")
    for fault in report.faults:
        typer.echo(f"  refused    {printable(fault)}")
    if report.refused > len(report.faults):
        typer.echo(f"  refused    and {report.refused - len(report.faults):,} more")

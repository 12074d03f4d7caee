"""`gradbus env check`: tries an environment before a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradbus.cli.options import taking
from gradbus.cli.output import AsJson, print_json, printable
from gradbus.errors import DatasetError, SettingsError
from gradbus.strict_json import parse_json

if TYPE_CHECKING:
    from gradbus.environment_check import Checked, Report
    from gradbus.spec.sections import EnvironmentSpec

app = typer.Typer(no_args_is_help=True, help="Environments of many turns.")


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of `gradbus env check`."""

    environment: Annotated[str, typer.Argument(metavar="FILE_OR_URL", help="Python source, or the address of an environment.")]
    item: Annotated[str | None, typer.Option(help="Dataset row as a JSON object.", show_default=False)] = None
    data: Annotated[Path | None, typer.Option(help="JSON Lines file, whose first rows the episodes take in turn.", show_default=False)] = (
        None
    )
    episodes: Annotated[int, typer.Option(min=1, max=1000, help="Episodes, each played in two processes.")] = 8
    step_seconds: Annotated[float, typer.Option(min=0.1, max=3600.0, help="Deadline of one answer.")] = 30.0
    sandbox: Annotated[str | None, typer.Option(help="How commands are confined: namespaces, bubblewrap.", show_default=False)] = None
    scored: Annotated[bool, typer.Option("--scored", help="The run has a [reward] too: episodes may end without one.")] = False
    as_json: AsJson = False


@app.callback()
def environments() -> None:
    """Environments of many turns."""


@app.command()
@taking(CheckOptions)
def check(options: CheckOptions) -> None:
    """Play an environment with the same random calls in two processes, and say what differs, fails or takes long.

    Needs no stack. Exit status 1: a run in this environment would fail, or not be deterministic although it says so.
    """
    import asyncio

    from gradbus.environment_check import Checked

    section, items = _section(options), list(_items(options))
    report = asyncio.run(_checked(Checked(section, items, options.episodes, options.scored)))
    if not (options.item or options.data) and report.problems:
        report.notes.append("the episodes had an empty row; give one of your dataset with --item or --data")
    if options.as_json:
        print_json(report.document())
    else:
        _print(report)
    if report.problems:
        raise typer.Exit(1)


async def _checked(checked: Checked) -> Report:
    from gradbus.environment_check import check_environment
    from gradbus.environment_check.service import single_service
    from gradbus.rpc import open_channel
    from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub

    async with single_service("environment") as service:
        channel = open_channel(service.address, service.token)
        try:
            return await check_environment(EnvironmentServiceStub(channel), checked)
        finally:
            await channel.close()


def _section(options: CheckOptions) -> EnvironmentSpec:
    """The `[environment]` section that a run would have."""
    from pydantic import ValidationError

    from gradbus.spec.sections import EnvironmentSpec

    given: dict[str, Any] = {"step_seconds": options.step_seconds, "sandbox": options.sandbox}
    if "://" in options.environment:
        given["service"] = options.environment
    else:
        try:
            given["source"] = Path(options.environment).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"cannot read {options.environment} ({error}); give a Python file, or an address with ://") from None
    try:
        return EnvironmentSpec.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise SettingsError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}; shorten it") from None


def _items(options: CheckOptions) -> Iterator[dict[str, Any]]:
    if options.item is not None and options.data is not None:
        raise SettingsError("--item and --data both give rows; leave one out")
    if options.data is None:
        yield _row(options.item or "{}", "--item")
        return
    try:
        lines = options.data.read_bytes().splitlines()
    except OSError as error:
        raise SettingsError(f"cannot read {options.data} ({error.strerror}); give a JSON Lines file") from None
    if not lines:
        raise DatasetError(f"{options.data} has no rows; give a JSON Lines file with one object a line")
    for number, line in enumerate(islice(lines, options.episodes), start=1):
        yield _row(line.decode("utf-8", "replace"), f"{options.data}, line {number}")


def _row(text: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(text.encode())
    except ValueError as error:
        raise DatasetError(f'{where}: not JSON ({error}); give an object such as {{"answer": 4}}') from None
    if not isinstance(row, dict):
        raise DatasetError(f'{where}: a row is a JSON object; give one such as {{"answer": 4}}')
    return row


def _print(report: Report) -> None:
    typer.echo(f"{printable(report.name) or 'environment'}  {report.digest[:12]}")
    for tool in report.tools:
        typer.echo(f"  tool       {printable(_signature(tool))}  {printable(tool['description'].partition(chr(10))[0])}")
    if report.sandbox:
        typer.echo(f"  sandbox    {printable(report.sandbox)}")
    if report.episodes:
        typer.echo(f"  played     {report.episodes} episodes with {report.turns} turns and {report.calls} calls, in two processes")
        typer.echo(f"  seeded     {_determinism(report)}")
        for kind, seconds in report.seconds.items():
            typer.echo(f"  {kind:<10} {1000 * seconds.median:.1f} ms, at most {1000 * seconds.longest:.1f} ms")
        typer.echo(f"  messages   at most {report.longest_message:,} characters")
        if report.rewards:
            typer.echo(f"  rewards    from {report.rewards[0]:g} to {report.rewards[1]:g} an episode")
    if found := report.difference:
        typer.echo(f"  difference {found.field}, after {printable(found.where)}")
        typer.echo(f"    first    {printable(found.first)}")
        typer.echo(f"    second   {printable(found.second)}")
    for note in report.notes:
        typer.echo(f"  note       {printable(note)}")
    for problem in report.problems:
        typer.echo(f"  problem    {printable(problem)}")
    typer.echo("not usable as it is" if report.problems else "ready for a run")


def _determinism(report: Report) -> str:
    declared = {"seeded": "declared", "recorded": "not declared, but recorded", "none": "not declared"}[report.declared]
    return f"{declared}; {'the answers differ' if report.difference else 'no difference found'}"


def _signature(tool: dict[str, Any]) -> str:
    schema = tool["parameters"]
    arguments = ", ".join(f"{name}: {_type(part)}" for name, part in schema.get("properties", {}).items())
    return f"{tool['name']}({arguments})"


def _type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    return str(schema.get("type", "any"))

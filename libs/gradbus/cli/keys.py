"""Subcommands for API keys, of the embedded stack's gateway or of a keys file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradbus.cli.options import State
from gradbus.cli.output import AsJson, print_json
from gradbus.errors import StackError

if TYPE_CHECKING:
    from gradbus.access.api_keys import ApiKeyRecord

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, pretty_exceptions_enable=False)
KeysFile = Annotated[Path | None, typer.Option("--file", help="Keys file; default: the embedded stack's.", show_default=False)]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the key's owner.")],
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", help="runs:read, runs:write, files:write or admin; repeatable. Default: runs:read.")
    ] = None,
    file: KeysFile = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print its token, which is shown only once. It is valid at once."""
    from gradbus.access.api_keys import new_api_key, read_api_keys, write_api_keys

    path, *others = _files(file, state)
    token, record = new_api_key(name, scopes or ["runs:read"])
    records = [*(read_api_keys(path) if path.exists() else []), record]
    for each in (path, *others):
        write_api_keys(each, records)
    print_json({"object": "key", **_shown(record), "token": token}) if as_json else typer.echo(token)


@app.command("list")
def list_keys(file: KeysFile = None, state: State = None, as_json: AsJson = False) -> None:
    """List keys. Their tokens are not stored."""
    from gradbus.access.api_keys import read_api_keys

    records = read_api_keys(_files(file, state)[0])
    if as_json:
        print_json({"object": "list", "data": [{"object": "key", **_shown(record)} for record in records]})
        return
    for record in records:
        typer.echo(f"{record.id}  {record.name:<24}  {' '.join(record.scopes)}")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID")], file: KeysFile = None, state: State = None, as_json: AsJson = False
) -> None:
    """Revoke a key."""
    from gradbus.access.api_keys import read_api_keys, write_api_keys
    from gradbus.errors import SettingsError

    path, *others = _files(file, state)
    records = read_api_keys(path)
    kept = [record for record in records if record.id != key_id]
    if len(kept) == len(records):
        raise SettingsError(f"{path} has no key {key_id!r}; `gradbus keys list` shows them")
    for each in (path, *others):
        write_api_keys(each, kept)
    print_json({"object": "key", "id": key_id, "revoked": True}) if as_json else typer.echo(f"revoked {key_id}")


def _shown(record: ApiKeyRecord) -> dict[str, object]:
    return {"id": record.id, "name": record.name, "scopes": list(record.scopes)}


def _files(file: Path | None, state: Path | None) -> tuple[Path, ...]:
    """The file that is read, then those that are written too."""
    from gradbus.deploy.credentials import api_keys_files

    if file:
        return (file,)
    folder = state or Path(os.environ.get("GRADBUS_STATE", ".gradbus"))
    paths = api_keys_files(folder / "secrets")
    if not paths[0].exists():
        raise StackError(f"no stack was ever started on {folder.absolute()}; name its folder with --state, or a keys file with --file")
    return paths

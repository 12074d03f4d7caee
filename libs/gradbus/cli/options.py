"""Options of several subcommands, and the lookup of a run by its name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from gradbus.cli.output import print_notice
from gradbus.errors import ApiError, StackError

if TYPE_CHECKING:
    from gradbus.client import Client

_STATE_HELP = "State folder of the embedded stack; default: $GRADBUS_STATE or .gradbus."
State = Annotated[Path | None, typer.Option("--state", help=_STATE_HELP, show_default=False)]
RunId = Annotated[str, typer.Argument(metavar="ID", help="Run id or its beginning, run name, or `last`.")]
_SEARCHED = 1000
Options = TypeVar("Options")
_RUN_ID = re.compile(r"run-[0-9a-f]{12}-[0-9a-f]{6}")


def taking(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Makes a subcommand whose options are the fields of a dataclass, for one that has many."""

    def decorate(function: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            function(options(**given))

        hints = get_type_hints(options, include_extras=True)
        parameters = [parameter.replace(annotation=hints[name]) for name, parameter in signature(options).parameters.items()]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate


def state_option(state: Path | None) -> str:
    """The `--state` option that a suggested command needs to reach the same stack."""
    return "" if state is None else f" --state {shlex.quote(str(state))}"


def connect(state: Path | None) -> Client:
    """A client of the gateway that prints when it has to wait for it."""
    from gradbus.client import Client, RetryPolicy

    return Client.discover(state, RetryPolicy(notify=print_notice))


def find_run(client: Client, given: str) -> dict[str, Any]:
    """The run with the id or name `given`: the newest one of a name, or the only one whose id begins with it.

    Raises StackError when no run or more than one matches.
    """
    page = client.runs(limit=_SEARCHED)
    known: list[dict[str, Any]] = page["data"]
    if not known:
        raise StackError("there are no runs yet; submit one with `gradbus run SPEC.toml`")
    if given == "last":
        return known[0]
    exact = [run for run in known if run["id"] == given] or [run for run in known if run["name"] == given]
    if exact:
        return exact[0]
    found = [run for run in known if given and run["id"].startswith(given)]
    if len(found) == 1:
        return found[0]
    if found:
        raise StackError(
            f"{given!r} is the beginning of {len(found)} run ids: {', '.join(run['id'] for run in found[:5])}; give more characters"
        )
    return _older(client, given, page["has_more"])


def _older(client: Client, given: str, has_more: bool) -> dict[str, Any]:
    """A run that is not among the newest, which can be found only by its full id."""
    if has_more and _RUN_ID.fullmatch(given):
        try:
            return client.run(given)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    where = f" among the newest {_SEARCHED:,}; give the full id of an older one" if has_more else ""
    raise StackError(f"no run is called {given!r}{where}; `gradbus runs` lists them")

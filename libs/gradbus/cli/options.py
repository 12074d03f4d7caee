"""Options of several subcommands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from gradbus.cli.output import print_notice

if TYPE_CHECKING:
    from gradbus.client import Client

_STATE_HELP = "State folder of the embedded stack; default: $GRADBUS_STATE or .gradbus."
State = Annotated[Path | None, typer.Option("--state", help=_STATE_HELP, show_default=False)]
RunId = Annotated[str, typer.Argument(metavar="ID", help="Run id or its beginning, run name, or `last`.")]
Options = TypeVar("Options")


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

"""What the command prints: text for a person, or JSON with `--json`. Data goes to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from gradbus.errors import ApiError, GradbusError, SpecError

_LATE_CONTROLS = range(0x7F, 0xA0)
"""Those that JSON allows as they are."""
_CONTROLS = dict.fromkeys((*range(ord(" ")), *_LATE_CONTROLS), " ")
_ESCAPES = {code: f"\\u{code:04x}" for code in _LATE_CONTROLS}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text; errors and notices too, on standard error.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object a line; errors and notices too, on standard error.")]


def wants_json() -> bool:
    """Whether the command line has `--json`. Read from the arguments, because an error may come before they are parsed."""
    return "--json" in sys.argv[1:]


def print_json(value: object) -> None:
    """Prints one JSON document, with its control characters escaped: what a model wrote must not control the reader's terminal."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False).translate(_ESCAPES))


def print_json_line(value: object) -> None:
    """Prints one line of JSON Lines."""
    print(json.dumps(value), flush=True)


def printable(text: str) -> str:
    """`text` with a space for each control character: what a model or a grader wrote must not control the reader's terminal."""
    return text.translate(_CONTROLS)


def print_notice(text: str) -> None:
    """Prints what is not part of the answer, to standard error: piped output then has only the requested data."""
    print(json.dumps({"object": "notice", "message": text}) if wants_json() else _printable_lines(text), file=sys.stderr, flush=True)


def print_error(error: GradbusError | typer.TyperException) -> None:
    """Prints why the command ends, and what to do."""
    if not wants_json():
        print(_printable_lines(f"error: {error}"), file=sys.stderr)
        return
    text = error.format_message() if isinstance(error, typer.TyperException) else str(error)
    print(json.dumps({"object": "error", "message": text, **_details(error)}), file=sys.stderr)


def discard_output() -> None:
    """The reader of standard output (head, less) is gone: nothing more can be printed, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _details(error: Exception) -> dict[str, Any]:
    if isinstance(error, SpecError):
        names = ("path", "message", "given", "allowed", "nearest")
        return {"faults": [{name: getattr(fault, name) for name in names if getattr(fault, name)} for fault in error.faults]}
    return {"problem": error.problem} if isinstance(error, ApiError) else {}

"""Subcommand replay: trains a run again in a process of the trainer's, with object storage alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from gradbus.cli.options import RunId, State, taking
from gradbus.cli.output import AsJson, print_json, printable
from gradbus.errors import ReplayError, StackError
from gradbus.exit_status import describe_exit

if TYPE_CHECKING:
    from gradbus.control.replay import Line, ReplayOrder, ReplayResult

_OBJECTS = "GRADBUS_OBJECTS_URL"


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Options of `gradbus replay`."""

    run_id: RunId
    to: Annotated[int | None, typer.Option("--to", min=0, metavar="STEP", help="Last version; default: the newest checkpoint's.")] = None
    start: Annotated[int, typer.Option("--from", min=0, metavar="STEP", help="Checkpoint to begin with; default: the base model.")] = 0
    anyway: Annotated[bool, typer.Option("--anyway", help="Go on where torch, the CPU or the GPU are others than the run's.")] = False
    objects: Annotated[
        str | None, typer.Option("--objects", metavar="URL", help="Object storage; default: $GRADBUS_OBJECTS_URL or the state folder's.")
    ] = None
    state: State = None
    as_json: AsJson = False


@taking(ReplayOptions)
def replay(options: ReplayOptions) -> None:
    """Train a run again from its archive, and compare every recorded digest. Only object storage has to run."""
    from rich.console import Console

    from gradbus.control.replay import ReplayFailure, ReplayOrder, ReplayResult

    order = ReplayOrder(run=options.run_id, start=options.start, to=options.to, anyway=options.anyway)
    places = _places(options)
    with Console(stderr=True).status("reading the archive") as waiting, _process(order, places) as lines:
        for line in lines:
            if isinstance(line, ReplayFailure):
                raise ReplayError(line.message)
            if isinstance(line, ReplayResult):
                found = line
                break
            waiting.update(f"version {line.step} of {line.to}" + (" is equal" if line.compared else ""))
    _print(found, options.as_json)


def _places(options: ReplayOptions) -> Mapping[str, str]:
    """Variables that name object storage and the cache. Raises StackError for a folder that does not exist."""
    from gradbus.embedded.state import DEFAULT_STATE, StateFolder

    url = options.objects or (os.environ.get(_OBJECTS) if options.state is None else None)
    if url:
        parts = urlsplit(url)
        if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
            raise StackError(f"there is no folder {unquote(parts.path)}; give --objects the object storage of the run's stack")
        return {_OBJECTS: url}
    state = StateFolder(options.state or DEFAULT_STATE)
    if not state.objects.is_dir():
        raise StackError(
            f"{state.root} has no object storage; name the stack's state folder by --state, or its object storage by --objects"
        )
    return {_OBJECTS: state.objects.as_uri(), "GRADBUS_CACHE_DIR": str(state.cache)}


@contextmanager
def _process(order: ReplayOrder, places: Mapping[str, str]) -> Iterator[Iterator[Line]]:
    """The lines of the process, which ends with the block."""
    from gradbus.control.replay import REPLAY_MODULE

    environment = {"GRADBUS_LOG_LEVEL": "WARNING", **os.environ, **places}
    process = subprocess.Popen(
        [sys.executable, "-m", REPLAY_MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,  # Ctrl-C is this process's, whose end closes the other's input
    )
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    with process:
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended already, and `_lines` says how
                process.stdin.write(f"{order.model_dump_json()}\n")
                process.stdin.flush()
            yield _lines(process)
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _lines(process: subprocess.Popen[str]) -> Iterator[Line]:
    """Raises ReplayError if the process ends without a result."""
    from gradbus.control.replay import LINE

    assert process.stdout is not None  # noqa: S101 - it is a pipe
    for line in process.stdout:
        yield LINE.validate_json(line)
    ended = describe_exit(process.wait())
    raise ReplayError(f"the process that trains ended early ({ended}); see its messages above, and whether this machine has memory enough")


def _print(found: ReplayResult, as_json: bool) -> None:
    if as_json:
        print_json({"object": "replay", **found.model_dump(mode="json", exclude={"kind"})})
        return
    typer.echo(f"version {found.to} of {found.run_id} comes out with the recorded digest {found.digest}")
    begun = f"from checkpoint {found.start}" if found.start else "from the base model"
    typer.echo(
        f"trained {found.to - found.start} steps {begun}; equal: {len(found.versions)} versions, {len(found.checkpoints)} checkpoints"
    )
    for difference in found.differences:
        typer.echo(printable(f"although {difference}"))

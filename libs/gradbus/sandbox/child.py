"""What every confined process does before and around a user's code. Standard library only; the parent is `process.py`.

Both ways go lines of JSON. The first is the child's {"layers": {...}}, sent once it is confined.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

from gradbus.sandbox.bounds import MAX_REASON
from gradbus.sandbox.confinement import MEMORY_BYTES, confine

_OWN_PACKAGES = "gradbus"
"""How the names of this project's packages begin."""


def confined_pipes(readable: Sequence[str] = (), memory_bytes: int = MEMORY_BYTES) -> tuple[BinaryIO, BinaryIO] | None:
    """Confines this process, tells the parent how, and returns the pipe from it and the pipe to it; None if the parent has died.

    `readable`: folders that it may read beside the standard library. `memory_bytes`: of address space.

    The last argument of the process is its niceness, added to the parent's.
    """
    os.nice(int(sys.argv[-1]))
    parent = os.getppid()
    incoming, outgoing = _private_pipes()
    layers = confine(readable, memory_bytes)
    if os.getppid() != parent:  # the parent died before PR_SET_PDEATHSIG was set
        return None
    for name in [name for name in sys.modules if name.startswith(_OWN_PACKAGES)]:
        del sys.modules[name]  # so that user code imports the standard library and nothing else
    os.environ.clear()
    send(outgoing, {"layers": asdict(layers)})
    return incoming, outgoing


def receive(stream: BinaryIO) -> Any:
    """The parent's next message; None when it has closed the pipe."""
    line = stream.readline()
    return json.loads(line) if line else None


def send(stream: BinaryIO, message: object) -> None:
    """Sends one message. Halves of surrogate pairs, which Python allows and UTF-8 does not, become question marks."""
    stream.write(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    stream.flush()


def described(error: BaseException, file: str, kind: str) -> str:
    """The error in one line, with the line of the user's source that raised it. `file`: how the names of its files begin."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line} of the {kind})" if line else ""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the text of a user's exception is the user's code
        text = "its text cannot be made"
    return f"{type(error).__name__}: {text}"[:MAX_REASON] + where


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the parent, moved away from the standard streams, which user code reads and prints to."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return incoming, outgoing

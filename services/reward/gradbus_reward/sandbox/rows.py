"""The loop of a confined process that grades rows. Standard library only; the parent is `process.py`.

Lines of JSON both ways:
  out  {"layers": {...}}                               once, after confinement: gradbus/sandbox/child.py
  in   {"sources": {part: source}}                     once
  out  {"faults": {part: reason}}                      once
  in   [at_once, [[text, ...]]]                        a batch; at_once: whether the parent needs each result as soon as there is one
  out  [n, [{part: [reward, components] | reason}]]    the results of one or more rows; n counts the rows before, of all batches
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

from gradbus.sandbox.child import receive, send
from gradbus.sandbox.results import Result

_MAX_FAULTS = 16
_SLOW_SECONDS = 0.001
"""A row that takes longer is worth a write of its own."""
_LINE_CHARACTERS = 8192
"""Results of quick rows share a line up to this size: far below what the parent reads at once."""

GradeRow = Callable[[Sequence[str]], Mapping[str, Result]]
Load = Callable[[Mapping[str, Any]], tuple[GradeRow, Mapping[str, str]]]
"""From sources by part to the function of a row, and the reasons why parts do not load."""


def serve(pipes: tuple[BinaryIO, BinaryIO], load: Load) -> None:
    """Serves the parent until it closes the pipe."""
    incoming, outgoing = pipes
    first = receive(incoming)
    if first is None:
        return
    grade, faults = load(first["sources"])
    send(outgoing, {"faults": dict(islice(faults.items(), _MAX_FAULTS))})
    results = _ResultLines(outgoing)
    while (batch := receive(incoming)) is not None:
        at_once, rows = batch
        for row in rows:
            began = time.monotonic()
            results.add(grade(row))
            if at_once or time.monotonic() - began > _SLOW_SECONDS:
                results.flush()
        results.flush()


class _ResultLines:
    """Sends results, many of them in one line: to read a line costs the parent more than to read a result."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sent = 0
        self._waiting: list[str] = []
        self._characters = 0

    def add(self, result: Mapping[str, Result]) -> None:
        """Adds a row's result to the next line, which is sent first if both do not fit into one."""
        text = json.dumps(result)
        if self._characters + len(text) > _LINE_CHARACTERS:
            self.flush()
        self._waiting.append(text)
        self._characters += len(text)

    def flush(self) -> None:
        """Sends the results that wait."""
        if self._waiting:
            self._stream.write(f"[{self._sent}, [{', '.join(self._waiting)}]]\n".encode())
            self._stream.flush()
            self._sent += len(self._waiting)
            self._waiting, self._characters = [], 0

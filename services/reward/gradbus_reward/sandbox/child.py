"""The process that runs a user's `grade(sample, item)`. Standard library only; the parent is `process.py`.

Lines of JSON both ways:
  out  {"layers": {...}}                               once, after confinement: gradbus/sandbox/child.py
  in   {"sources": {part: source}}                     once
  out  {"faults": {part: reason}}                      once
  in   [at_once, [[output_text, finish_reason, item_json]]]
                                                       a batch; at_once: whether the parent needs each result as soon as there is one
  out  [n, [{part: [reward, components] | reason}]]    the results of one or more rows; n counts the rows before, of all batches
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, BinaryIO

from gradbus.sandbox.child import confined_pipes, described, receive, send
from gradbus.sandbox.results import Result, checked_result

_MAX_FAULTS = 16
_SLOW_SECONDS = 0.001
"""A row that takes longer is worth a write of its own."""
_LINE_CHARACTERS = 8192
"""Results of quick rows share a line up to this size: far below what the parent reads at once."""

Grade = Callable[[dict[str, str], Any], object]


def main() -> None:
    """Serves the parent until it closes the pipe."""
    pipes = confined_pipes()
    first = receive(pipes[0]) if pipes else None
    if pipes is None or first is None:
        return
    incoming, outgoing = pipes
    grades, faults = _loaded(first["sources"])
    send(outgoing, {"faults": faults})
    results = _ResultLines(outgoing)
    while (batch := receive(incoming)) is not None:
        at_once, rows = batch
        for row in rows:
            began = time.monotonic()
            results.add(_grade(grades, *row))
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


def _loaded(sources: Mapping[str, str]) -> tuple[dict[str, Grade], dict[str, str]]:
    grades: dict[str, Grade] = {}
    faults: dict[str, str] = {}
    for part, source in sources.items():
        names: dict[str, Any] = {"__name__": f"grader_{part}"}
        try:
            exec(compile(source, f"<grader {part}>", "exec"), names)  # noqa: S102 - this process exists to run the user's code
        except BaseException as error:  # noqa: BLE001 - whatever it raises is reported to the user
            faults[part] = _described(error)
            continue
        if callable(names.get("grade")):
            grades[part] = names["grade"]
        else:
            faults[part] = "the source defines no function grade(sample, item)"
    return grades, dict(islice(faults.items(), _MAX_FAULTS))


def _grade(grades: Mapping[str, Grade], output_text: str, finish_reason: str, item_json: str) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for part, grade in grades.items():
        # New objects for every part, so that no grader sees what another one changes.
        sample = {"output_text": output_text, "finish_reason": finish_reason}
        try:
            results[part] = checked_result(grade(sample, json.loads(item_json)), "grade()")
        except BaseException as error:  # noqa: BLE001 - it becomes the sample's result
            results[part] = _described(error)
    return results


def _described(error: BaseException) -> str:
    return described(error, "<grader ", "grader")

"""The process that runs a user's `grade(sample, item)`. Standard library only; the parent is `process.py`.

Lines of JSON both ways:
  out  {"layers": {...}}                               once, after confinement
  in   {"sources": {part: source}}                     once
  out  {"faults": {part: reason}}                      once
  in   [at_once, [[output_text, finish_reason, item_json]]]
                                                       a batch; at_once: whether the parent needs each result as soon as there is one
  out  [n, [{part: [reward, components] | reason}]]    the results of one or more rows; n counts the rows before, of all batches
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, BinaryIO

from gradbus_reward.sandbox.bounds import MAX_COMPONENTS, MAX_NAME, MAX_REASON
from gradbus_reward.sandbox.confinement import confine

_MAX_FAULTS = 16
_SLOW_SECONDS = 0.001
"""A row that takes longer is worth a write of its own."""
_LINE_CHARACTERS = 8192
"""Results of quick rows share a line up to this size: far below what the parent reads at once."""
_MAX_INTEGER = 1 << 1000
"""Below the range of a double."""

Grade = Callable[[dict[str, str], Any], object]
PartResult = tuple[float, dict[str, float]] | str
"""A reward with its components, or the reason why there is none."""


def main() -> None:
    """Serves the parent until it closes the pipe. The second argument of the process is its niceness, added to the parent's."""
    os.nice(int(sys.argv[2]))
    parent = os.getppid()
    incoming, outgoing = _private_pipes()
    layers = confine()
    if os.getppid() != parent:  # the parent died before PR_SET_PDEATHSIG was set
        return
    _send(outgoing, {"layers": asdict(layers)})
    first = _receive(incoming)
    if first is None:
        return
    grades, faults = _loaded(first["sources"])
    _send(outgoing, {"faults": faults})
    results = _ResultLines(outgoing)
    while (batch := _receive(incoming)) is not None:
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

    def add(self, result: Mapping[str, PartResult]) -> None:
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


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the parent, moved away from the standard streams, which user code reads and prints to."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return incoming, outgoing


def _receive(stream: BinaryIO) -> Any:
    line = stream.readline()
    return json.loads(line) if line else None


def _send(stream: BinaryIO, message: object) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


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


def _grade(grades: Mapping[str, Grade], output_text: str, finish_reason: str, item_json: str) -> dict[str, PartResult]:
    results: dict[str, PartResult] = {}
    for part, grade in grades.items():
        # New objects for every part, so that no grader sees what another one changes.
        sample = {"output_text": output_text, "finish_reason": finish_reason}
        try:
            results[part] = _checked(grade(sample, json.loads(item_json)))
        except BaseException as error:  # noqa: BLE001 - it becomes the sample's result
            results[part] = _described(error)
    return results


def _checked(result: object) -> PartResult:
    """The reward and components that `grade` returned, or a reason if a value is not a finite number."""
    if isinstance(result, dict) and len(result) > MAX_COMPONENTS:
        return f"grade() returned {len(result)} named values; at most {MAX_COMPONENTS}"
    parts = result.items() if isinstance(result, dict) else [("reward", result)]
    values: dict[str, float] = {}
    for key, value in parts:
        name = str(key)
        if len(name) > MAX_NAME:
            return f"grade() returned a value whose name has {len(name)} characters; at most {MAX_NAME}"
        if isinstance(value, int) and abs(value) > _MAX_INTEGER:
            return f"grade() returned {name[:80]} = an integer of {value.bit_length()} bits; scale it"
        # Converted before it is checked: a subclass may convert to something else.
        number = float(value) if isinstance(value, int | float) else math.nan
        if not math.isfinite(number):
            return f"grade() returned {name[:80]} = {repr(value)[:80]}, not a finite number"
        values[name] = number
    if "reward" not in values:
        return "grade() returned a dict without 'reward'"
    return values.pop("reward"), values


def _described(error: BaseException) -> str:
    """The error in one line, with the line of the user's source that raised it."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<grader "):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line} of the grader)" if line else ""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - the text of a user's exception is the user's code
        text = "its text cannot be made"
    return f"{type(error).__name__}: {text}"[:MAX_REASON] + where

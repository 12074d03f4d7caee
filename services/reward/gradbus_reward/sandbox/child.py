"""The process that runs a user's `grade(sample, item)`. Standard library only; the parent is `process.py`.

Frames both ways: four bytes of length, big-endian, then JSON.
  out  {"layers": {...}}                          once, after confinement
  in   {"sources": {part: source}}                once
  out  {"faults": {part: reason}}                 once
  in   [[output_text, finish_reason, item_json]]  a batch
  out  [{part: [reward, components] | reason}]    its results, in the order of the batch
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, BinaryIO

from gradbus_reward.sandbox.confinement import confine

MAX_REASON = 500
MAX_COMPONENTS = 64
MAX_NAME = 200

Grade = Callable[[dict[str, str], Any], object]
PartResult = tuple[float, dict[str, float]] | str
"""A reward with its components, or the reason why there is none."""


def main() -> None:
    """Serves the parent until it closes the pipe."""
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
    while (rows := _receive(incoming)) is not None:
        _send(outgoing, [_grade(grades, *row) for row in rows])


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the parent, moved away from the standard streams, which user code reads and prints to."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    return incoming, outgoing


def _receive(stream: BinaryIO) -> Any:
    header = stream.read(4)
    if len(header) < 4:
        return None
    return json.loads(stream.read(struct.unpack(">I", header)[0]))


def _send(stream: BinaryIO, message: object) -> None:
    body = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
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
    return grades, faults


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
    parts: dict[Any, Any] = dict(result) if isinstance(result, dict) else {"reward": result}
    if len(parts) > MAX_COMPONENTS:
        return f"grade() returned {len(parts)} named values; at most {MAX_COMPONENTS}"
    if "reward" not in parts:
        return "grade() returned a dict without 'reward'"
    for name, value in parts.items():
        if len(str(name)) > MAX_NAME:
            return f"grade() returned a value whose name has {len(str(name))} characters; at most {MAX_NAME}"
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"grade() returned {str(name)[:80]} = {repr(value)[:80]}, not a finite number"
    values = {str(name): float(value) for name, value in parts.items()}
    return values.pop("reward"), values


def _described(error: BaseException) -> str:
    """The error in one line, with the line of the user's source that raised it."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith("<grader "):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line} of the grader)" if line else ""
    return f"{type(error).__name__}: {error}"[:MAX_REASON] + where

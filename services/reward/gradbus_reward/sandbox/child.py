"""The process that runs a user's `grade(sample, item)`. Standard library only; `rows.py` says what it and its parent send."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gradbus.sandbox.child import confined_pipes, described
from gradbus.sandbox.results import Result, checked_result
from gradbus_reward.sandbox.rows import GradeRow, serve

Grade = Callable[[dict[str, str], Any], object]


def main() -> None:
    """Serves the parent until it closes the pipe. A row is output text, finish reason and item as JSON."""
    if pipes := confined_pipes():
        serve(pipes, _loaded)


def _loaded(sources: Mapping[str, str]) -> tuple[GradeRow, dict[str, str]]:
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
    return partial(_grade, grades), faults


def _grade(grades: Mapping[str, Grade], row: Sequence[str]) -> dict[str, Result]:
    output_text, finish_reason, item_json = row
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

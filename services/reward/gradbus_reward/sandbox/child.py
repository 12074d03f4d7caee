"""The process that runs a user's reward function. Standard library only; `rows.py` says what it and its parent send.

A row is output text, finish reason and item as JSON, and the prompt if an interface reads it. A source is an object of `source`,
`interface`, `function` and `label`; a text alone defines `grade(sample, item)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gradbus.sandbox.child import confined_pipes, described
from gradbus.sandbox.results import Result
from gradbus_reward.sandbox.interfaces import graded
from gradbus_reward.sandbox.rows import GradeRow, serve


@dataclass(frozen=True)
class Function:
    """A loaded function and how it is called."""

    call: Callable[..., Any]
    interface: str = "gradbus"
    label: str = ""


def main() -> None:
    """Serves the parent until it closes the pipe."""
    if pipes := confined_pipes():
        serve(pipes, _loaded)


def _loaded(sources: Mapping[str, Any]) -> tuple[GradeRow, dict[str, str]]:
    functions: dict[str, Function] = {}
    faults: dict[str, str] = {}
    for part, given in sources.items():
        source = given if isinstance(given, dict) else {"source": given, "interface": "gradbus", "function": "grade", "label": ""}
        names: dict[str, Any] = {"__name__": f"grader_{part}"}
        try:
            exec(compile(source["source"], f"<grader {part}>", "exec"), names)  # noqa: S102 - this process exists to run the user's code
        except BaseException as error:  # noqa: BLE001 - whatever it raises is reported to the user
            faults[part] = described(error, "<grader ", "grader")
            continue
        name = source["function"]
        if callable(names.get(name)):
            functions[part] = Function(names[name], source["interface"], source["label"])
        else:
            faults[part] = f"the source defines no function {name}{'(sample, item)' if name == 'grade' else ''}"
    return partial(grade_row, functions), faults


def grade_row(functions: Mapping[str, Function], row: Sequence[str]) -> dict[str, Result]:
    """The results of a row, by part."""
    results: dict[str, Result] = {}
    for part, function in functions.items():
        try:
            # With new objects for every part, so that no grader sees what another one changes.
            results[part] = graded(function.call, function.interface, row, function.label)
        except BaseException as error:  # noqa: BLE001 - it becomes the sample's result
            results[part] = described(error, "<grader ", "grader")
    return results

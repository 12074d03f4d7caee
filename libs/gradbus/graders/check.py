"""Checks a grader at the submission of a run."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator

from gradbus.errors import Fault, GraderError
from gradbus.graders.formula import Formula
from gradbus.graders.template import Template
from gradbus.spec import Grader, MultiGrader, PythonGrader, SimpleGrader


def check_grader(grader: Grader, item_columns: Collection[str], path: str = "reward.grader") -> list[Fault]:
    """Every fault of `grader` for rows with `item_columns`: unknown columns and names, invalid formulas and sources."""
    if not isinstance(grader, MultiGrader):
        return list(_simple_faults(grader, item_columns, path))
    faults = [fault for name, part in grader.graders.items() for fault in _simple_faults(part, item_columns, f"{path}.graders.{name}")]
    return faults + list(_formula_faults(grader, f"{path}.calculate_output"))


def _simple_faults(grader: SimpleGrader, item_columns: Collection[str], path: str) -> Iterator[Fault]:
    if isinstance(grader, PythonGrader):
        if grader.source is not None:
            yield from _source_faults(grader.source, f"{path}.source")
        return
    yield from _template_faults(grader.input, item_columns, f"{path}.input")
    yield from _template_faults(grader.reference, item_columns, f"{path}.reference")


def _template_faults(text: str, item_columns: Collection[str], path: str) -> Iterator[Fault]:
    try:
        template = Template(text)
    except GraderError as error:
        yield Fault(path, str(error))
        return
    for name in template.names:
        if name[0] == "item" and name[1] not in item_columns:
            yield _unknown(path, "not a column that every row has", name[1], item_columns)


def _formula_faults(grader: MultiGrader, path: str) -> Iterator[Fault]:
    try:
        formula = Formula(grader.calculate_output)
    except GraderError as error:
        yield Fault(path, str(error))
        return
    for name in sorted(formula.names - set(grader.graders)):
        yield _unknown(path, "the formula names no grader", name, grader.graders)


def _source_faults(source: str, path: str) -> Iterator[Fault]:
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        yield Fault(path, f"not Python: {error}")
        return
    if not any(_binds_grade(statement) for statement in module.body):
        yield Fault(path, "no function `grade` at the top level", allowed="def grade(sample, item): ...")


def _binds_grade(statement: ast.stmt) -> bool:
    match statement:
        case ast.FunctionDef(name="grade"):
            return True
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Name) and target.id == "grade" for target in targets)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return any((alias.asname or alias.name) == "grade" for alias in names)
        case ast.If(body=body, orelse=orelse):
            return any(_binds_grade(inner) for inner in [*body, *orelse])
    return False


def _unknown(path: str, message: str, given: str, known: Collection[str]) -> Fault:
    nearest = difflib.get_close_matches(given, sorted(known), n=1)
    return Fault(path, message, f"`{given}`", ", ".join(sorted(known)), nearest[0] if nearest else "")

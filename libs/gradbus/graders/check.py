"""Checks a grader at the submission of a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Final

from gradbus.errors import Fault, GraderError
from gradbus.graders.formula import Formula
from gradbus.graders.template import Template
from gradbus.nearest import nearest_name
from gradbus.niceness import USERS_NICENESS
from gradbus.spec import MAX_FAULTS, Grader, JsonSchemaGrader, MultiGrader, PythonGrader, RegexGrader, SimpleGrader

_NAMES_SHOWN: Final = 20
_GIVEN_SHOWN: Final = 80
_SOURCE_CHECK: Final = str(Path(__file__).with_name("source_check.py"))
_SOURCES_KEPT: Final = 64
_PARSE_SECONDS: Final = 30.0
_TEMPLATES: Final = ("input", "system", "reference", "tests", "json_schema")
"""Fields of graders that are templates, where they are text."""
_TOO_MUCH: Final = {1, -signal.SIGXCPU}
"""How the parser ends for want of memory, or of time of the processor."""


def check_grader(grader: Grader, item_columns: Collection[str], path: str = "reward.grader") -> list[Fault]:
    """The faults of `grader`, at most MAX_FAULTS, for rows with `item_columns`: unknown columns and names, invalid formulas and sources.

    Raises TimeoutError if this machine is too busy to parse a source or a pattern.
    """
    if not isinstance(grader, MultiGrader):
        return list(islice(_simple_faults(grader, item_columns, path), MAX_FAULTS))
    parts = (_simple_faults(part, item_columns, f"{path}.graders.{name}") for name, part in grader.graders.items())
    return list(islice(chain(chain.from_iterable(parts), _formula_faults(grader, f"{path}.calculate_output")), MAX_FAULTS))


def _simple_faults(grader: SimpleGrader, item_columns: Collection[str], path: str) -> Iterator[Fault]:
    if isinstance(grader, PythonGrader):
        if grader.source is not None:
            arguments = "sample, item" if grader.interface == "gradbus" else "..."
            allowed = f"def {grader.function_name}({arguments}): ..."
            yield from source_faults(grader.source, f"{path}.source", grader.function_name, allowed)
        return
    for field in _TEMPLATES:
        if isinstance(text := getattr(grader, field, None), str):
            yield from _template_faults(text, item_columns, f"{path}.{field}")
    if isinstance(grader, RegexGrader) and (fault := _source_fault(grader.pattern, "")):
        yield Fault(f"{path}.pattern", fault, grader.pattern[:_GIVEN_SHOWN], "Python's `re`")
    if isinstance(grader, JsonSchemaGrader) and isinstance(grader.json_schema, dict):
        dialect = grader.json_schema.get("$schema", "")
        if not isinstance(dialect, str):
            yield Fault(f"{path}.json_schema", "its `$schema` is no text", repr(dialect)[:_GIVEN_SHOWN], "the URI of a dialect, or none")


def _template_faults(text: str, item_columns: Collection[str], path: str) -> Iterator[Fault]:
    try:
        template = Template(text)
    except GraderError as error:
        yield Fault(path, str(error))
        return
    for name in dict.fromkeys(template.names):
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


def source_faults(source: str, path: str, name: str, allowed: str) -> Iterator[Fault]:
    """A fault for source that is not Python, or does not bind `name`. Raises TimeoutError if this machine is too busy to parse it."""
    if fault := _source_fault(source, name):
        yield Fault(path, fault, allowed=allowed)


@lru_cache(_SOURCES_KEPT)
def _source_fault(source: str, name: str) -> str:
    """Why the source of `name` cannot be used, or the pattern if there is no name; or nothing. Many submissions have the same source.

    Raises TimeoutError for a lost process.
    """
    command = [sys.executable, "-I", "-S", _SOURCE_CHECK, str(USERS_NICENESS), name]
    try:
        done = subprocess.run(command, input=source.encode(), capture_output=True, env={}, timeout=_PARSE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TimeoutError("the source cannot be parsed now; submit it again later") from error
    if done.returncode in _TOO_MUCH:
        return "too much for Python's parser; shorten the source"
    if done.returncode:
        raise TimeoutError(f"the process that parses the source ended with status {done.returncode}; submit it again later")
    return done.stdout.decode()


def _unknown(path: str, message: str, given: str, known: Collection[str]) -> Fault:
    names = sorted(known)
    return Fault(path, message, f"`{given[:_GIVEN_SHOWN]}`", ", ".join(names[:_NAMES_SHOWN]), nearest_name(given, names))

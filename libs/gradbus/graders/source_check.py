"""`python source_check.py NICENESS NAME`: reads Python source, and writes why it cannot be a grader or an environment, or nothing.

It must bind NAME at its top level. With an empty NAME it is a regular expression.

A process of its own: Python's parser lets no other thread run, and takes minutes for some sources. It imports nothing else of Gradbus,
so that it starts in a moment.
"""

from __future__ import annotations

import ast
import os
import re
import resource
import sys
from collections.abc import Iterator

_CPU_SECONDS = 2
_MEMORY_BYTES = 256 << 20


def main() -> None:
    """Writes the fault of the source on the input; ends with another status than 0 if the source is too much for the parser."""
    os.nice(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 1))  # SIGXCPU, not SIGKILL
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.stdout.buffer.write(_fault(sys.stdin.buffer.read().decode(), sys.argv[2]).encode("utf-8", "backslashreplace"))


def _fault(source: str, name: str) -> str:
    if not name:
        return _pattern_fault(source)
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"not Python: {error}"
    return "" if any(_binds(statement, name) for statement in _top_level(module.body)) else f"no `{name}` at the top level"


def _pattern_fault(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"not a regular expression: {error}"
    return ""


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those under an `if`. A loop: a long `elif` chain is deeper than Python's stack."""
    waiting = [*body]
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.If):
            waiting += [*statement.body, *statement.orelse]
        yield statement


def _binds(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.FunctionDef(name=bound) | ast.ClassDef(name=bound):
            return bound == name
        case ast.Assign(targets=targets):
            return any(isinstance(target, ast.Name) and target.id == name for target in targets)
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return any((alias.asname or alias.name) == name for alias in names)
    return False


if __name__ == "__main__":
    main()

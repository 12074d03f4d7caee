"""Docstrings of tools, in Google's form: what a tool does, and what its arguments mean. Standard library only."""

from __future__ import annotations

import re

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Yields|Raises):\s*$")
_ARGUMENTS = frozenset({"Args", "Arguments", "Parameters"})
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the first section, and the descriptions under `Args:` by argument. `text` is dedented."""
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if _SECTION.match(line)]
    if not starts:
        return text, {}
    description = "\n".join(lines[: starts[0]]).strip()
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        if lines[start].rstrip(": ") in _ARGUMENTS:
            return description, _arguments(lines[start + 1 : end])
    return description, {}


def _arguments(lines: list[str]) -> dict[str, str]:
    """Each argument begins at the least indentation; deeper lines go on with it."""
    kept = [line for line in lines if line.strip()]
    least = min((len(line) - len(line.lstrip()) for line in kept), default=0)
    found: dict[str, str] = {}
    name = ""
    for line in kept:
        begun = _ARGUMENT.match(line) if len(line) - len(line.lstrip()) == least else None
        if begun:
            name = begun[1]
            found[name] = begun[2].strip()
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found

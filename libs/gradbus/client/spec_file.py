"""Reads spec files: TOML, with fields overridden on the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gradbus.errors import Fault, SpecError

Json = dict[str, Any]


def load_spec(path: Path, overrides: Iterable[str] = ()) -> Json:
    """Reads the spec in a TOML file and applies `overrides` (`section.field=value`, the value as in TOML).

    Raises SpecError when the file cannot be read, is not TOML, or an override is malformed.
    """
    try:
        spec = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SpecError([Fault("(file)", f"cannot be read: {error.strerror}", str(path), "the path of a TOML file")]) from None
    except ValueError as error:
        raise SpecError([Fault("(file)", f"not TOML: {error}", str(path))]) from None
    return with_overrides(spec, overrides)


def with_overrides(spec: Json, overrides: Iterable[str]) -> Json:
    """`spec` itself, with these fields. Raises SpecError when an override is malformed."""
    for override in overrides:
        _put(spec, override)
    return spec


def _put(spec: Json, override: str) -> None:
    name, equals, text = override.partition("=")
    *sections, field = (part.strip() for part in name.split("."))
    if not equals or not field or not all(sections):
        raise SpecError([Fault("--set", "is not a field and its value", override, "section.field=value")])
    target: Any = spec
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise SpecError([Fault("--set", f"`{section}` is not a section", override, "section.field=value")])
    target[field] = _value(text.strip())


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # an unquoted word is a string

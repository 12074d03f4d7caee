"""JSON that keeps to a JSON Schema, by the library jsonschema. A schema may hold patterns: the caller bounds the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn, Protocol

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from gradbus_reward.built_in.texts import Grade, UngradableError, last_fenced


class Validator(Protocol):
    """What the library compiles a schema to."""

    def is_valid(self, instance: object) -> bool:
        """Whether it keeps to the schema."""
        ...


def compiled(settings: Mapping[str, Any]) -> Grade:
    """The grader of a text, and of a schema as text unless the settings have one. Raises UngradableError."""
    given, is_fenced = settings["json_schema"], settings["fenced"]
    own = None if isinstance(given, str) else _validator(given)

    def grade(text: str, schema: str = "") -> float:
        validator = own or _validator_of(schema)
        try:
            document = json.loads((last_fenced(text) if is_fenced else None) or text, parse_constant=_refuse)
        except ValueError:
            return 0.0
        except RecursionError as error:
            raise UngradableError("the text is JSON that is nested too deeply") from error
        try:
            return float(validator.is_valid(document))
        except Unresolvable as error:
            raise UngradableError(f"the schema refers to what it does not hold ({error}); write references as #/$defs/name") from error

    return grade


@lru_cache(16)  # of schemas of hundreds of kilobytes more would not fit in the process
def _validator_of(text: str) -> Validator:
    try:
        return _validator(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UngradableError(f"the row's schema is not JSON: {error}") from error


def _validator(schema: object) -> Validator:
    if isinstance(schema, Mapping) and not isinstance(schema.get("$schema", ""), str):
        raise UngradableError("not a JSON Schema: its $schema is no text; write the URI of a dialect, or leave it out")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise UngradableError(f"not a JSON Schema: {error.message[:200]}") from error
    found: Validator = kind(schema, registry=Registry())  # an empty one: references are never fetched
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")

"""Arguments of tool calls made from JSON Schemas: some that fit, and some as a policy writes them that has not learnt yet."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

Schema = Mapping[str, Any]

_MAX_DEPTH: Final = 6
_NEAR: Final = 1e-6
_SMALL: Final = 9
_MOST: Final = 1_000
"""Bound of a number that has no bounds of its own."""
_OTHER_VALUES: Final[tuple[Any, ...]] = (None, True, -1, 3.5, "", "x", [], [1, "a"], {}, {"a": None})
_NO_ARGUMENTS: Final = ("", "{", '{"a": 1', "[1, 2]", "null", '"text"', "{'a': 1}", '{"a": NaN}', "\u0000", '{"a": 1}}')


class Arguments:
    """Makes arguments by a seeded generator."""

    def __init__(self, draw: Random, words: Sequence[str]) -> None:
        """`words` are the texts that string arguments are drawn from."""
        self._draw = draw
        self._words = words

    def fitting(self, schema: Schema) -> str:
        """JSON text of an object that fits `schema`, as far as type, enum, bounds, items, properties, anyOf and local $ref say."""
        return json.dumps(self._value(schema, schema, 0), ensure_ascii=False)

    def unfit(self, schema: Schema) -> str:
        """Text that is no JSON object, or one with an argument that is missing, unknown, or of another type."""
        if self._draw.random() < 0.3:
            return self._draw.choice(_NO_ARGUMENTS)
        made = self._value(schema, schema, 0)
        given: dict[str, Any] = dict(made) if isinstance(made, dict) else {}
        if given and self._draw.random() < 0.7:
            name = self._draw.choice(sorted(given))
            if self._draw.random() < 0.3:
                del given[name]
            else:
                given[name] = self._draw.choice(_OTHER_VALUES)
        else:
            given["unknown_argument"] = 1
        return json.dumps(given, ensure_ascii=False)

    def _value(self, schema: Schema, root: Schema, depth: int) -> Any:
        schema = _resolved(schema, root)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._draw.choice(list(schema["enum"]))
        parts = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
        if parts:
            return self._value(parts[0] if depth > _MAX_DEPTH else self._draw.choice(list(parts)), root, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = self._draw.choice(kind)
        makers: Mapping[str, Callable[[], Any]] = {
            "object": lambda: self._object(schema, root, depth),
            "array": lambda: self._array(schema, root, depth),
            "integer": lambda: self._number(schema, is_whole=True),
            "number": lambda: self._number(schema, is_whole=False),
            "boolean": lambda: self._draw.random() < 0.5,
            "null": lambda: None,
        }
        return makers.get(kind, lambda: self._text(schema))()

    def _object(self, schema: Schema, root: Schema, depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        wanted = [
            (name, part)
            for name, part in schema.get("properties", {}).items()
            if name in required or (depth < _MAX_DEPTH and self._draw.random() < 0.7)
        ]
        return {name: self._value(part, root, depth + 1) for name, part in wanted}

    def _array(self, schema: Schema, root: Schema, depth: int) -> list[Any]:
        least = int(schema.get("minItems", 0))
        most = least if depth >= _MAX_DEPTH else min(int(schema.get("maxItems", least + 3)), least + 3)
        return [self._value(schema.get("items", {}), root, depth + 1) for _ in range(self._draw.randint(least, max(least, most)))]

    def _number(self, schema: Schema, *, is_whole: bool) -> int | float:
        low, high = _bound(schema, "inimum", 1 if is_whole else _NEAR), _bound(schema, "aximum", -1 if is_whole else -_NEAR)
        low = min(-_MOST, _MOST if high is None else high) if low is None else low
        high = max(_MOST, low) if high is None else high
        if not is_whole:
            return self._draw.uniform(low, high)
        low, high = math.ceil(low), math.floor(high)
        # Small numbers come often: they are what most tools take.
        is_small = low <= 0 and high >= _SMALL and self._draw.random() < 0.5
        return self._draw.randint(0, _SMALL) if is_small else self._draw.randint(low, max(low, high))

    def _text(self, schema: Schema) -> str:
        text = self._draw.choice(self._words)
        text += "x" * (int(schema.get("minLength", 0)) - len(text))
        return text[: schema.get("maxLength")]


def _bound(schema: Schema, name: str, inside: float) -> float | None:
    """The least or the largest value; `inside` is added to a bound that is excluded."""
    if f"m{name}" in schema:
        return float(schema[f"m{name}"])
    return float(schema[f"exclusiveM{name}"]) + inside if f"exclusiveM{name}" in schema else None


def _resolved(schema: Any, root: Schema) -> Schema:
    """The schema that a local `$ref` names. What is no object says nothing."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        found: Any = root
        for name in reference.split("/")[1:]:
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        schema = found
    return {}

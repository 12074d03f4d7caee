"""From the methods of a user's class to tools: JSON Schema of their arguments, and arguments that fit it. Standard library only."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from gradbus_environment.sandbox.docstrings import read_docstring

RESERVED = frozenset({"reset", "step", "reward"})
MAX_TOOLS = 128
MAX_DESCRIPTION = 4096

_SIMPLE: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    list: {"type": "array"},
    type(None): {"type": "null"},
}
_JSON_TYPES: Mapping[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}


class ToolError(Exception):
    """A method cannot be a tool."""


class ArgumentsError(Exception):
    """The arguments of a call do not fit its tool."""


@dataclass(frozen=True)
class Tool:
    """A method of the user's class that the policy may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments."""

    def arguments(self, text: str) -> dict[str, Any]:
        """The arguments in `text`. Raises ArgumentsError."""
        try:
            given = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ArgumentsError(f"the arguments are not JSON: {error}") from None
        if not isinstance(given, dict):
            raise ArgumentsError("the arguments are not an object")
        if faults := list(_object_faults(given, self.parameters, "")):
            raise ArgumentsError("; ".join(faults[:4]))
        return given


def tools_of(environment: type, reserved: frozenset[str] = RESERVED) -> dict[str, Tool]:
    """The tools of a class in the order of their definition: its public methods but the `reserved` ones.

    Raises ToolError, which says what to change.
    """
    found: dict[str, Tool] = {}
    for base in reversed(environment.__mro__[:-1]):
        for name, member in vars(base).items():
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if name.startswith("_") or name in reserved or not inspect.isfunction(function):
                continue
            found[name] = _tool(name, function, is_bound=not isinstance(member, staticmethod))
    if len(found) > MAX_TOOLS:
        raise ToolError(f"the class has {len(found)} public methods; at most {MAX_TOOLS} can be tools")
    return found


def _tool(name: str, function: Callable[..., Any], *, is_bound: bool) -> Tool:
    advice = "or begin its name with _ if it is no tool"
    description, meanings = read_docstring(inspect.getdoc(function) or "")
    if not description:
        raise ToolError(f"the public method {name} has no docstring; write what the tool does, {advice}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ToolError(f"the method {name} is asynchronous or a generator; make it an ordinary method, {advice}")
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:  # noqa: BLE001 - hints are the user's code
        raise ToolError(f"the type hints of {name} cannot be read ({type(error).__name__}: {error})") from None
    properties: dict[str, Any] = {}
    required = []
    for parameter in list(inspect.signature(function).parameters.values())[1 if is_bound else 0 :]:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise ToolError(f"the tool {name} takes {parameter}; name each argument")
        if parameter.name not in hints:
            raise ToolError(f"the argument {parameter.name} of {name} has no type hint; add one, {advice}")
        properties[parameter.name] = _schema(hints[parameter.name], f"{name}({parameter.name})")
        if meanings.get(parameter.name):
            properties[parameter.name]["description"] = meanings[parameter.name][:MAX_DESCRIPTION]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Tool(name, description[:MAX_DESCRIPTION], parameters)


def _schema(hint: Any, where: str) -> dict[str, Any]:
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return {"type": "array", "items": _schema(inner[0], where)}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": _schema(inner[1], where)}
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_schema(part, where) for part in inner]}
    if origin is Literal and all(isinstance(value, str | int | None) for value in inner):
        return {"enum": list(inner)}
    raise ToolError(f"the hint of {where} is no JSON type; use str, int, float, bool, list[...], dict, Optional or Literal")


def _faults(value: object, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """What is wrong with a value; its parts are named by dotted paths."""
    if "enum" in schema:
        if not any(value == allowed and type(value) is type(allowed) for allowed in schema["enum"]):
            yield f"{path} is none of {json.dumps(schema['enum'])}"
    elif "anyOf" in schema:
        found = [list(_faults(value, part, path)) for part in schema["anyOf"]]
        if all(found):
            yield " or ".join(faults[0] for faults in found)
    elif not _JSON_TYPES[schema["type"]](value):
        yield f"{path} is not of type {schema['type']}"
    elif isinstance(value, list) and "items" in schema:
        for n, part in enumerate(value):
            yield from _faults(part, schema["items"], f"{path}[{n}]")
    elif isinstance(value, dict):
        yield from _object_faults(value, schema, f"{path}.")


def _object_faults(value: Mapping[str, object], schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    others = schema.get("additionalProperties", True)
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{prefix}{name} is missing"
    for name, part in value.items():
        if name in properties:
            yield from _faults(part, properties[name], f"{prefix}{name}")
        elif others is False:
            yield f"{prefix}{name[:80]} is no argument; known: {', '.join(properties) or 'none'}"
        elif isinstance(others, dict):
            yield from _faults(part, others, f"{prefix}{name}")


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")

"""Arguments made from JSON Schemas."""

import json
from random import Random

import jsonschema
import pytest

from gradbus.environment_check.arguments import Arguments

WORDS = ("a", "42", "Ünïcode ✓", "")
SCHEMAS = {
    "simple": {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "x": {"type": "number"}, "s": {"type": "string"}, "b": {"type": "boolean"}},
        "required": ["n", "x", "s", "b"],
        "additionalProperties": False,
    },
    "bounds": {
        "type": "object",
        "properties": {
            "low": {"type": "integer", "minimum": 5, "maximum": 6},
            "between": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
            "far": {"type": "integer", "minimum": 100_000},
            "part": {"type": "number", "minimum": -0.5, "maximum": 0.5},
            "text": {"type": "string", "minLength": 3, "maxLength": 5},
            "list": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        },
        "required": ["low", "between", "far", "part", "text", "list"],
    },
    "choices": {
        "type": "object",
        "properties": {
            "enum": {"enum": ["a", 1, None]},
            "const": {"const": {"k": 1}},
            "any": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "one": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "boolean"}}]},
            "types": {"type": ["integer", "string"]},
        },
        "required": ["enum", "const", "any", "one", "types"],
    },
    "definitions": {
        "type": "object",
        "properties": {"move": {"$ref": "#/$defs/Move"}},
        "required": ["move"],
        "$defs": {
            "Move": {"type": "object", "properties": {"to": {"$ref": "#/$defs/Square"}}, "required": ["to"]},
            "Square": {"type": "string"},
        },
    },
    "tree": {"type": "object", "properties": {"child": {"$ref": "#"}, "value": {"type": "integer"}}, "required": ["value"]},
    "anything": {"type": "object"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_fitting_arguments_fit_their_schema(name):
    made, judge = Arguments(Random(0), WORDS), jsonschema.Draft202012Validator(SCHEMAS[name])
    for _ in range(200):
        judge.validate(json.loads(made.fitting(SCHEMAS[name])))


def test_arguments_are_a_function_of_the_seed():
    one, other = (Arguments(Random(3), WORDS) for _ in range(2))
    assert [one.fitting(SCHEMAS["simple"]) for _ in range(20)] == [other.fitting(SCHEMAS["simple"]) for _ in range(20)]


def test_unfit_arguments_are_seldom_what_the_tool_takes():
    made, judge = Arguments(Random(1), WORDS), jsonschema.Draft202012Validator(SCHEMAS["simple"])

    def fits(text):
        try:
            return judge.is_valid(json.loads(text))
        except ValueError:
            return False

    texts = [made.unfit(SCHEMAS["simple"]) for _ in range(400)]
    assert sum(map(fits, texts)) < 60
    assert any("unknown_argument" in text for text in texts)


@pytest.mark.parametrize("schema", [{}, {"type": "object", "properties": {"a": True, "b": {"$ref": "#/none"}}}, {"type": "nothing"}])
def test_a_schema_that_says_little_is_no_error(schema):
    made = Arguments(Random(2), WORDS)
    for _ in range(50):
        json.loads(made.fitting(schema))
        made.unfit(schema)

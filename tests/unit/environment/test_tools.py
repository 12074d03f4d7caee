"""Tools from methods: the JSON Schema of their arguments, what is refused, and which arguments fit."""

import json
from typing import Any, Literal, Optional

import pytest

from gradbus_environment.sandbox.tools import ArgumentsError, ToolError, tools_of


class Simple:
    def reset(self, item, seed):
        pass

    def step(self, text):
        pass

    def reward(self, text):
        pass

    def look(
        self,
        name: str,
        count: int,
        share: float = 0.5,
        deep: bool = False,
        tags: list[str] = (),
        table: dict[str, list[int]] | None = None,
        unit: Literal["m", "km", 3, None] = "m",  # noqa: PYI061 - as users write
        raw: dict = {},  # noqa: B006 - as users write
        rest: Optional[list] = None,  # noqa: UP045 - as users write
    ) -> str:
        """Looks.

        Deeply.
        """

    @staticmethod
    def add(a: int, b: int) -> int:
        """Adds."""

    def _hidden(self, anything):
        pass


class Derived(Simple):
    limit = 3

    def add(self, a: int) -> int:
        """Adds one."""


def parameters(cls=Simple, name="look"):
    return tools_of(cls)[name].parameters


def test_the_tools_are_the_public_methods_in_their_order_with_their_docstrings():
    assert {name: tool.description for name, tool in tools_of(Simple).items()} == {"look": "Looks.\n\nDeeply.", "add": "Adds."}
    assert list(tools_of(Derived)) == ["look", "add"]
    assert parameters(Derived, "add")["required"] == ["a"]


def test_the_schema_of_every_hint():
    assert parameters() == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "deep": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "table": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}}, {"type": "null"}]
            },
            "unit": {"enum": ["m", "km", 3, None]},
            "raw": {"type": "object"},
            "rest": {"anyOf": [{"type": "array"}, {"type": "null"}]},
        },
        "required": ["name", "count"],
        "additionalProperties": False,
    }


def test_a_schema_is_json_and_validates_as_one():
    assert json.loads(json.dumps(parameters())) == parameters()


FITTING = [
    {"name": "x", "count": 3},
    {
        "name": "",
        "count": -1,
        "share": 1,
        "deep": True,
        "tags": ["a"],
        "table": {"a": [1]},
        "unit": "km",
        "raw": {"a": None},
        "rest": [1, "b"],
    },
    {"name": "x", "count": 10**30, "table": None, "unit": None, "rest": None},
]


@pytest.mark.parametrize("given", FITTING)
def test_arguments_that_fit(given):
    assert tools_of(Simple)["look"].arguments(json.dumps(given)) == given


BASE = {"name": "x", "count": 3}
WRONG = {
    "": "not JSON",
    "[1]": "not an object",
    '{"name": "x", "count": 3': "not JSON",
    '{"name": NaN, "count": 3}': "not JSON",
    "[" * 100_000: "not JSON",
    "{}": "name is missing; count is missing",
    json.dumps(BASE | {"count": "3"}): "count is not of type integer",
    json.dumps(BASE | {"count": True}): "count is not of type integer",
    json.dumps(BASE | {"count": 3.5}): "count is not of type integer",
    json.dumps(BASE | {"share": "x"}): "share is not of type number",
    json.dumps(BASE | {"deep": 1}): "deep is not of type boolean",
    json.dumps(BASE | {"tags": ["a", 1]}): "tags[1] is not of type string",
    json.dumps(BASE | {"table": {"a": [1, "2"]}}): "table.a[1] is not of type integer",
    json.dumps(BASE | {"unit": "mile"}): "unit is none of",
    json.dumps(BASE | {"unit": True}): "unit is none of",
    json.dumps(BASE | {"colour": 1}): "colour is no argument; known: name, count",
}


@pytest.mark.parametrize("given", WRONG, ids=lambda text: text[:40])
def test_arguments_that_do_not_fit_are_refused_with_the_place(given):
    with pytest.raises(ArgumentsError) as caught:
        tools_of(Simple)["look"].arguments(given)
    assert WRONG[given] in str(caught.value)


def no_docstring(self, a: int): ...
def no_hint(self, a):
    """Looks."""


def any_hint(self, a: Any):
    """Looks."""


def many(self, *args: int):
    """Looks."""


def named(self, **kwargs: int):
    """Looks."""


def unknown(self, a: "NoSuchType"):  # noqa: F821 - as a user may write
    """Looks."""


def keys(self, a: dict[int, str]):
    """Looks."""


async def later(self, a: int):
    """Looks."""


REFUSED = {
    no_docstring: "has no docstring", no_hint: "has no type hint", any_hint: "no JSON type", many: "name each argument",
    named: "name each argument", unknown: "cannot be read", keys: "no JSON type", later: "asynchronous",
}  # fmt: skip


@pytest.mark.parametrize("method", REFUSED, ids=lambda method: method.__name__)
def test_a_method_that_can_be_no_tool_is_refused_by_name(method):
    with pytest.raises(ToolError) as caught:
        tools_of(type("Environment", (), {method.__name__: method}))
    assert method.__name__ in str(caught.value)
    assert REFUSED[method] in str(caught.value)

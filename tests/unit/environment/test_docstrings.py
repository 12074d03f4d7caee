"""Docstrings in Google's form become descriptions of a tool and of its arguments."""

import inspect

import pytest

from gradbus_environment.sandbox.docstrings import read_docstring
from gradbus_environment.sandbox.tools import ToolError, tools_of

PLAIN = """Moves.

Note: it takes
a while."""
WHOLE = """Moves the piece.

At most one square.

Args:
    where (str): The square,
        as in "e4".
    fast: Whether in a hurry: yes or no.
    *rest: Others.

Returns:
    What the board says.

Raises:
    where: not an argument
"""


def test_the_description_stands_before_the_sections_and_arguments_have_their_own():
    assert read_docstring(WHOLE) == (
        "Moves the piece.\n\nAt most one square.",
        {"where": 'The square, as in "e4".', "fast": "Whether in a hurry: yes or no.", "rest": "Others."},
    )


@pytest.mark.parametrize("text", ["", "Moves.", PLAIN])
def test_a_docstring_without_sections_is_the_description(text):
    assert read_docstring(text) == (text, {})


@pytest.mark.parametrize(
    ("text", "found"), [("Args:", {}), ("Args:\nwhere: x", {}), ("Args:\n    ???\n    a b: c", {}), ("Args:\n    a:", {"a": ""})]
)
def test_whatever_is_no_argument_is_left_out(text, found):
    assert read_docstring(text) == ("", found)


def test_arguments_of_a_tool_are_described_in_its_schema():
    class Board:
        def move(self, where: str, fast: bool = False):
            """Moves.

            Args:
                where: The square.
                slow: There is no such argument.
            """

    tool = tools_of(Board)["move"]
    described = {"where": {"type": "string", "description": "The square."}, "fast": {"type": "boolean"}}
    assert (tool.description, tool.parameters["properties"]) == ("Moves.", described)
    assert tool.arguments('{"where": "e4"}') == {"where": "e4"}


def test_a_tool_that_describes_its_arguments_alone_is_refused():
    class Board:
        def move(self, where: str):
            """Args:
            where: The square.
            """

    assert inspect.getdoc(Board.move)
    with pytest.raises(ToolError, match="move has no docstring"):
        tools_of(Board)

"""What a run reads of a dataset's row: its prompt, and responses if the dataset gives them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final, NamedTuple

from gradbus.errors import DatasetError
from gradbus.nearest import nearest_name
from gradbus.spec import RowColumns

MAX_COLUMNS: Final = 1000
_MAX_NAME: Final = 256
_NAMES_SHOWN: Final = 20
_ASSISTANT: Final = "assistant"
_USUAL_PROMPTS: Final = ("question", "problem", "instruction", "query", "messages", "input", "text")
"""Names of the prompt's column in public datasets, the likeliest first."""

Row = dict[str, object]


class GivenRow(NamedTuple):
    """What a run reads of a row."""

    prompt: object
    """Text or messages."""
    responses: list[object]
    label: bool | None
    """Whether the response is a desirable one; None in a dataset without labels."""


def given_row(row: Row, columns: RowColumns, where: str) -> GivenRow:
    """What the run reads of a row. Raises DatasetError, naming the row by `where`, if the row lacks a part of it."""
    label = None if columns.label is None else _label(row, columns.label, where)
    if columns.conversation is not None:
        return GivenRow(*_split_conversation(row, columns.conversation, where), label)
    _checked_prompt(row, columns.prompt, where)
    _check_responses(row, columns, where)
    return GivenRow(row[columns.prompt], [row[column] for column in columns.responses], label)


def check_columns(row: Row, where: str) -> None:
    """Raises DatasetError for a row with too many columns, or with a name that is too long."""
    if len(row) > MAX_COLUMNS:
        raise DatasetError(f"{where} has {len(row)} columns, at most {MAX_COLUMNS} are taken; leave out those that no grader reads")
    if any(len(name) > _MAX_NAME for name in row):
        raise DatasetError(f"{where} has a column whose name is longer than {_MAX_NAME} characters; give it a shorter one")


def _split_conversation(row: Row, column: str, where: str) -> tuple[object, list[object]]:
    _checked_prompt(row, column, where)
    messages = row[column]
    if not isinstance(messages, list):
        raise DatasetError(f"{where} has text as {column!r}; give a list of messages, or name prompt and completion in [data]")
    start = next((at for at, message in enumerate(messages) if message["role"] == _ASSISTANT), None)
    if not start:
        missing = "no message of the assistant" if start is None else "nothing before the assistant's first message"
        raise DatasetError(f"the conversation of {where} has {missing}; add it or leave the row out")
    return messages[:start], [messages[start:]]


def _label(row: Row, column: str, where: str) -> bool:
    if column not in row:
        raise DatasetError(f"{where} has no column {column!r}, it has {listed(row)}; name the column of the labels in data.label")
    label = row[column]
    if not isinstance(label, bool):
        raise DatasetError(f"{where} has {kind_of(label)} as {column!r}; a label is true (a desirable response) or false")
    return label


def _check_responses(row: Row, columns: RowColumns, where: str) -> None:
    """Raises DatasetError if a response is not one to the row's prompt, or if two are equal."""
    prompt, responses = columns.prompt, columns.responses
    for column in responses:
        if column not in row:
            nearest = nearest_name(column, row)
            advice = f"did you mean {nearest!r}?" if nearest else "name the columns of the responses in [data]"
            raise DatasetError(f"{where} has no column {column!r}, it has {listed(row)}; {advice}")
        value, is_chat = row[column], isinstance(row[prompt], list)
        if isinstance(value, str):
            if not value:
                raise DatasetError(f"{where} has an empty {column!r}; give it text or leave the row out")
            continue
        if not isinstance(value, list) or not value or not all(_is_message(message) for message in value):
            raise DatasetError(
                f"{where} has {kind_of(value)} as {column!r}; give text, or a list of messages such as "
                '{"role": "assistant", "content": "..."}'
            )
        if value[0]["role"] != _ASSISTANT:
            raise DatasetError(f"{where} has a {column!r} that does not begin with a message of the assistant; move it to the prompt")
        if not is_chat:
            raise DatasetError(f"{where} has messages as {column!r} and a prompt of text; give both as text, or both as messages")
    if len(responses) > 1 and row[responses[0]] == row[responses[1]]:
        raise DatasetError(f"{where} has the same {responses[0]!r} and {responses[1]!r}, which teaches nothing; leave the row out")


def _checked_prompt(row: Row, column: str, where: str) -> bool:
    """Whether the row's prompt is a chat. Raises DatasetError if it is not a prompt."""
    if column not in row:
        raise DatasetError(f"{where} has no column {column!r}, it has {listed(row)}; {_advice(column, row)}")
    value = row[column]
    if isinstance(value, str):
        if not value:
            raise DatasetError(f"{where} has an empty prompt; give it text or leave the row out")
        return False
    if not isinstance(value, list) or not value or not all(_is_message(message) for message in value):
        raise DatasetError(
            f'{where} has a prompt that is {kind_of(value)}; give text, or a list of messages such as {{"role": "user", "content": "..."}}'
        )
    return True


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _advice(column: str, columns: Collection[str]) -> str:
    nearest = nearest_name(column, columns) or next((name for name in _USUAL_PROMPTS if name in columns), "")
    return f"did you mean data.prompt = {nearest!r}?" if nearest else "name the prompt's column in data.prompt"


def listed(columns: Collection[str]) -> str:
    """The first names, in words."""
    names = ", ".join(islice(columns, _NAMES_SHOWN))
    return f"{names} and {len(columns) - _NAMES_SHOWN} more" if len(columns) > _NAMES_SHOWN else names or "none"


def kind_of(value: object) -> str:
    """What a value of JSON is, in words."""
    names = {str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")

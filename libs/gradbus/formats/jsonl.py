"""Datasets in JSON Lines: one object a line, with the prompt in one of its columns, and responses in others if they are given."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from gradbus.errors import DatasetError
from gradbus.nearest import nearest_name
from gradbus.spec import RowColumns
from gradbus.strict_json import parse_json

MAX_ROW_BYTES: Final = 1 << 20
MAX_LINES: Final = 2_000_000
MAX_COLUMNS: Final = 1000
_MAX_NAME: Final = 256
_NAMES_SHOWN: Final = 20
_ASSISTANT: Final = "assistant"

Row = dict[str, object]


class GivenRow(NamedTuple):
    """What a run reads of a row."""

    prompt: object
    """Text or messages."""
    responses: list[object]
    label: bool | None
    """Whether the response is a desirable one; None in a dataset without labels."""


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Facts about a dataset, after one pass."""

    rows: int
    columns: frozenset[str]
    """Columns that every row has."""
    chat: bool
    """Whether any prompt is a list of messages, which needs a chat template."""
    longest: int
    """Bytes of the longest row."""


def rows(data: bytes) -> list[Row]:
    """All rows. Raises DatasetError, naming the line, if the data is not JSON Lines, is past a limit or has no rows."""
    return list(iterate(data))


def iterate(data: bytes) -> Iterator[Row]:
    """Rows one by one, without blank lines. Raises DatasetError as `rows` does."""
    return (row for _, row in numbered(data))


def numbered(data: bytes) -> Iterator[tuple[int, Row]]:
    """(line, row) of every row; lines count from 1, blank lines included. Raises DatasetError as `rows` does."""
    return ((number, row) for number, row, _ in _measured(data))


def _measured(data: bytes) -> Iterator[tuple[int, Row, int]]:
    """(line, row, bytes of the line) of every row."""
    found = False
    for number, line in enumerate(io.BytesIO(data), start=1):
        if number > MAX_LINES:
            raise DatasetError(f"the dataset has more than {MAX_LINES} lines; leave rows or blank lines out")
        if not line.strip():
            continue
        found = True
        yield number, _row(line, number), len(line)
    if not found:
        raise DatasetError("the dataset has no rows; write one JSON object a line")


def _row(line: bytes, number: int) -> Row:
    if len(line) > MAX_ROW_BYTES:
        raise DatasetError(f"line {number} has {len(line)} bytes, at most {MAX_ROW_BYTES} are taken; shorten or split the row")
    try:
        row = parse_json(line.rstrip())
    except ValueError as error:
        # The message without the parser's own line number, which is always 1.
        where = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DatasetError(f"line {number} is not JSON ({where}); write one JSON object a line") from None
    if not isinstance(row, dict):
        raise DatasetError(f"line {number} is {_kind(row)}; write one JSON object a line, with a column for the prompt")
    return row


def given_row(row: Row, columns: RowColumns, line: int) -> GivenRow:
    """What the run reads of a row. Raises DatasetError, naming the line, if the row lacks a part of it."""
    label = None if columns.label is None else _label(row, columns.label, line)
    if columns.conversation is not None:
        return GivenRow(*_split_conversation(row, columns.conversation, line), label)
    _checked_prompt(row, columns.prompt, line)
    _check_responses(row, columns, line)
    return GivenRow(row[columns.prompt], [row[column] for column in columns.responses], label)


def inspect(data: bytes, columns: RowColumns) -> DatasetInfo:
    """Checks every row, its prompt and its responses. Raises DatasetError for the first wrong row."""
    count, common, chat, longest = 0, frozenset[str](), False, 0
    for count, (line, row, size) in enumerate(_measured(data), start=1):
        _check_columns(row, line)
        common = common.intersection(row) if count > 1 else frozenset(row)
        chat = chat or not isinstance(given_row(row, columns, line).prompt, str)
        longest = max(longest, size)
    return DatasetInfo(count, common, chat, longest)


def _check_columns(row: Row, line: int) -> None:
    if len(row) > MAX_COLUMNS:
        raise DatasetError(f"line {line} has {len(row)} columns, at most {MAX_COLUMNS} are taken; leave out those that no grader reads")
    if any(len(name) > _MAX_NAME for name in row):
        raise DatasetError(f"line {line} has a column whose name is longer than {_MAX_NAME} characters; give it a shorter one")


def prompts_object(data: bytes, columns: RowColumns) -> bytes:
    """JSON Lines with only the prompt of each row, on the same line: rollout workers get no answers but what the run trains on.

    With `columns.whole_row` they get the row as `item`, for its environment.
    """
    lines: list[str] = []
    for line, row in numbered(data):
        read = given_row(row, columns, line)
        lines.extend([""] * (line - 1 - len(lines)))
        given = {"responses": read.responses} if read.responses else {}
        label = {} if read.label is None else {"label": read.label}
        item = {"item": row} if columns.whole_row else {}
        lines.append(json.dumps({"prompt": read.prompt, **given, **label, **item}, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def _split_conversation(row: Row, column: str, line: int) -> tuple[object, list[object]]:
    _checked_prompt(row, column, line)
    messages = row[column]
    if not isinstance(messages, list):
        raise DatasetError(f"line {line} has text as {column!r}; give a list of messages, or name prompt and completion in [data]")
    start = next((at for at, message in enumerate(messages) if message["role"] == _ASSISTANT), None)
    if not start:
        missing = "no message of the assistant" if start is None else "nothing before the assistant's first message"
        raise DatasetError(f"the conversation of line {line} has {missing}; add it or leave the row out")
    return messages[:start], [messages[start:]]


def _label(row: Row, column: str, line: int) -> bool:
    if column not in row:
        raise DatasetError(f"line {line} has no column {column!r}, it has {_listed(row)}; name the column of the labels in data.label")
    label = row[column]
    if not isinstance(label, bool):
        raise DatasetError(f"line {line} has {_kind(label)} as {column!r}; a label is true (a desirable response) or false")
    return label


def _check_responses(row: Row, columns: RowColumns, line: int) -> None:
    """Raises DatasetError if a response is not one to the row's prompt, or if two are equal."""
    prompt, responses = columns.prompt, columns.responses
    for column in responses:
        if column not in row:
            nearest = nearest_name(column, row)
            advice = f"did you mean {nearest!r}?" if nearest else "name the columns of the responses in [data]"
            raise DatasetError(f"line {line} has no column {column!r}, it has {_listed(row)}; {advice}")
        value, is_chat = row[column], isinstance(row[prompt], list)
        if isinstance(value, str):
            if not value:
                raise DatasetError(f"line {line} has an empty {column!r}; give it text or leave the row out")
            continue
        if not isinstance(value, list) or not value or not all(_is_message(message) for message in value):
            raise DatasetError(
                f"line {line} has {_kind(value)} as {column!r}; give text, or a list of messages such as "
                '{"role": "assistant", "content": "..."}'
            )
        if value[0]["role"] != _ASSISTANT:
            raise DatasetError(f"line {line} has a {column!r} that does not begin with a message of the assistant; move it to the prompt")
        if not is_chat:
            raise DatasetError(f"line {line} has messages as {column!r} and a prompt of text; give both as text, or both as messages")
    if len(responses) > 1 and row[responses[0]] == row[responses[1]]:
        raise DatasetError(f"line {line} has the same {responses[0]!r} and {responses[1]!r}, which teaches nothing; leave the row out")


def _checked_prompt(row: Row, column: str, line: int) -> bool:
    """Whether the row's prompt is a chat. Raises DatasetError if it is not a prompt."""
    if column not in row:
        raise DatasetError(f"line {line} has no column {column!r}, it has {_listed(row)}; {_advice(column, row)}")
    value = row[column]
    if isinstance(value, str):
        if not value:
            raise DatasetError(f"line {line} has an empty prompt; give it text or leave the row out")
        return False
    if not isinstance(value, list) or not value or not all(_is_message(message) for message in value):
        raise DatasetError(
            f"line {line} has a prompt that is {_kind(value)}; give text, or a list of messages such as "
            '{"role": "user", "content": "..."}'
        )
    return True


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _advice(column: str, columns: Collection[str]) -> str:
    nearest = nearest_name(column, columns)
    return f"did you mean data.prompt = {nearest!r}?" if nearest else "name the prompt's column in data.prompt"


def _listed(columns: Collection[str]) -> str:
    names = ", ".join(islice(columns, _NAMES_SHOWN))
    return f"{names} and {len(columns) - _NAMES_SHOWN} more" if len(columns) > _NAMES_SHOWN else names or "none"


def _kind(value: object) -> str:
    names = {str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")

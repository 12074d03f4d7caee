"""Datasets in JSON Lines: one object a line, with the prompt in one of its columns."""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gradbus.errors import DatasetError

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Facts about a dataset, after one pass."""

    rows: int
    columns: frozenset[str]
    """Columns that every row has."""
    chat: bool
    """Whether any prompt is a list of messages, which needs a chat template."""


def rows(data: bytes) -> list[Row]:
    """All rows. Raises DatasetError, naming the line, if the data is not JSON Lines or has no rows."""
    return list(iterate(data))


def iterate(data: bytes) -> Iterator[Row]:
    """Rows one by one, without blank lines. Raises DatasetError as `rows` does."""
    return (row for _, row in numbered(data))


def numbered(data: bytes) -> Iterator[tuple[int, Row]]:
    """(line, row) of every row; lines count from 1, blank lines included. Raises DatasetError as `rows` does."""
    found = False
    for number, line in enumerate(io.BytesIO(data), start=1):
        if not line.strip():
            continue
        found = True
        try:
            row = json.loads(line.rstrip())
        except (ValueError, RecursionError) as error:
            # The message without the parser's own line number, which is always 1.
            where = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DatasetError(f"line {number} is not JSON ({where}); write one JSON object a line") from None
        if not isinstance(row, dict):
            raise DatasetError(f"line {number} is {_kind(row)}; write one JSON object a line, with a column for the prompt")
        yield number, row
    if not found:
        raise DatasetError("the dataset has no rows; write one JSON object a line")


def inspect(data: bytes, prompt: str) -> DatasetInfo:
    """Checks every row and its prompt in the column `prompt`. Raises DatasetError for the first wrong row."""
    count, columns, chat = 0, frozenset[str](), False
    for count, (line, row) in enumerate(numbered(data), start=1):
        columns = columns.intersection(row) if count > 1 else frozenset(row)
        chat = _checked_prompt(row, prompt, line) or chat
    return DatasetInfo(count, columns, chat)


def prompts_object(data: bytes, prompt: str) -> bytes:
    """JSON Lines with only the prompt of each row, on the same line: rollout workers get no answers."""
    lines: list[str] = []
    for line, row in numbered(data):
        _checked_prompt(row, prompt, line)
        lines.extend([""] * (line - 1 - len(lines)))
        lines.append(json.dumps({"prompt": row[prompt]}, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def _checked_prompt(row: Row, column: str, line: int) -> bool:
    """Whether the row's prompt is a chat. Raises DatasetError if it is not a prompt."""
    if column not in row:
        raise DatasetError(f"line {line} has no column {column!r}, it has {', '.join(row) or 'none'}; {_advice(column, row)}")
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
    nearest = difflib.get_close_matches(column, columns, n=1)
    return f"did you mean data.prompt = {nearest[0]!r}?" if nearest else "name the prompt's column in data.prompt"


def _kind(value: object) -> str:
    names = {str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")

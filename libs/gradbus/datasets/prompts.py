"""The file of a run's prompts: rollout workers get no answers but what the run trains on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from gradbus.datasets.jsonl import numbered
from gradbus.datasets.rows import given_row
from gradbus.spec import RowColumns


def write_prompts(rows: Path, columns: RowColumns, out: BinaryIO) -> None:
    """Writes the prompt of each row, on the same line. With `columns.whole_row` workers get the row as `item`, for its environment.

    Raises DatasetError, naming the line, and OSError.
    """
    with rows.open("rb") as file:
        for line, row in numbered(file):
            read = given_row(row, columns, f"line {line}")
            given = {"responses": read.responses} if read.responses else {}
            label = {} if read.label is None else {"label": read.label}
            item = {"item": row} if columns.whole_row else {}
            prompt = {"prompt": read.prompt, **given, **label, **item}
            out.write(json.dumps(prompt, ensure_ascii=False).encode() + b"\n")

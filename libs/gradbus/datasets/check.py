"""`gradbus data check`: what a run would read of its datasets, before it is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from gradbus.datasets.prepare import DatasetFile, ReadRow, RowPlan, no_rows, read_rows
from gradbus.errors import DatasetError
from gradbus.tokenizer.encoder import PromptEncoder

SHOWN_FAULTS: Final = 20


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row as the model sees it."""

    where: str
    text: str
    """The prompt after the chat template, without special tokens; as given, if there is no tokenizer."""
    prompt_tokens: int | None
    response_tokens: Sequence[int]


@dataclass(slots=True)
class PartReport:
    """What was found in a dataset, or in a part of a mixture."""

    name: str
    files: int
    weight: float | None = None
    rows: int = 0
    left_out: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    """The first reasons why rows are refused."""
    columns: list[str] = field(default_factory=list)
    """Those of the first row."""
    shown: list[ShownRow] = field(default_factory=list)
    encoded: int = 0
    """Rows whose tokens were counted."""
    tokens: tuple[int, float, int] | None = None
    """Fewest, median and most tokens of their prompts."""

    def refuse(self, error: DatasetError) -> None:
        """Notes a row that is refused."""
        self.refused += 1
        if len(self.faults) < SHOWN_FAULTS:
            self.faults.append(str(error))


@dataclass(frozen=True, slots=True)
class Check:
    """How much is looked at."""

    plan: RowPlan
    encoder: PromptEncoder | None
    shown: int
    encoded: int
    """Rows that are encoded; all are checked."""


def check_part(report: PartReport, files: Sequence[DatasetFile], check: Check) -> None:
    """Reads all rows into `report`. A file that cannot be read further, as one of another format, ends it with a fault."""
    counts: list[int] = []
    try:
        for number, row in enumerate(read_rows(files, check.plan), start=1):
            if isinstance(row, DatasetError):
                report.refuse(row)
                continue
            if not row.line:
                report.left_out += 1
                continue
            report.columns = report.columns or list(row.row)
            try:
                found = _encoded(row, number, check) if len(counts) < check.encoded else None
            except DatasetError as error:
                report.refuse(error)
                continue
            report.rows += 1
            if found is not None:
                counts += [] if found.prompt_tokens is None else [found.prompt_tokens]
                report.shown += [found] if len(report.shown) < check.shown else []
        if not report.rows and not report.refused:
            report.faults.append(no_rows(report.left_out))
    except DatasetError as error:
        report.refuse(error)
    if counts:
        report.encoded, report.tokens = len(counts), (min(counts), median(counts), max(counts))


def _encoded(row: ReadRow, number: int, check: Check) -> ShownRow:
    prompt, responses = row.read.prompt, row.read.responses
    if check.encoder is None:
        return ShownRow(row.where, prompt if isinstance(prompt, str) else str(prompt), None, ())
    ids = check.encoder.encode(prompt, number)
    encoded = check.encoder.encode_responses(prompt, responses, len(ids), number) if responses else []
    [text] = check.encoder.decode([ids])
    return ShownRow(row.where, text, len(ids), [len(response) for response in encoded])

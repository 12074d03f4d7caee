"""How long the prompts and the given responses of a dataset are, by its first rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from gradbus.datasets.prepare import DatasetFile, RowPlan, read_rows
from gradbus.errors import DatasetError
from gradbus.tokenizer.encoder import PromptEncoder


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of rows."""

    rows: int
    prompt: float
    """Of a prompt, in the mean."""
    longest_prompt: int
    response: float | None
    """Of a given response, in the mean; None: rows have none."""


def read_lengths(files: Sequence[DatasetFile], plan: RowPlan, encoder: PromptEncoder, most: int) -> Lengths | None:
    """Of the first `most` rows of each file, without those that the filter leaves out or that a submission would refuse; None: of no row.

    Raises DatasetError for a file that cannot be read further, and OSError.
    """
    prompts: list[int] = []
    responses: list[int] = []
    for file in files:
        for number, row in enumerate(islice(read_rows([file], plan), most), start=1):
            if isinstance(row, DatasetError) or not row.line:
                continue
            try:
                ids = encoder.encode(row.read.prompt, number)
                given = encoder.encode_responses(row.read.prompt, row.read.responses, len(ids), number) if row.read.responses else []
            except DatasetError:
                continue
            prompts.append(len(ids))
            responses += map(len, given)
    if not prompts:
        return None
    return Lengths(len(prompts), fmean(prompts), max(prompts), fmean(responses) if responses else None)


def mixed(parts: Iterable[tuple[Lengths, float]]) -> Lengths:
    """Of a mixture of (lengths, weight): a part's weight is its share of the groups. Needs at least one part."""
    found, weights = zip(*parts, strict=True)
    responses = [(one.response, weight) for one, weight in zip(found, weights, strict=True) if one.response is not None]
    return Lengths(
        rows=sum(one.rows for one in found),
        prompt=fmean([one.prompt for one in found], weights),
        longest_prompt=max(one.longest_prompt for one in found),
        response=fmean([mean for mean, _ in responses], [weight for _, weight in responses]) if responses else None,
    )

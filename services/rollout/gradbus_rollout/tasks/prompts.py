"""The rows of a dataset as prompts for the engine. The run's tokenizer works in a process of its own."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Final

from gradbus.datasets.row_file import RowFile
from gradbus.formats.tokens import pack_ids, token_count, unpack_ids
from gradbus.tokenizer.tokenizer import NumberedPrompt, Tokenizer

_CHECKED_ROWS: Final = 10_000
_CHECK_SECONDS: Final = 30.0
_ROWS_AT_ONCE: Final = 64
_LOOKED_AT: Final = 16
"""Rows after one, for another prompt: those with the same one are usually neighbours."""
_KEPT_ROWS: Final = 10_000
_KEPT_SIZE: Final = 1 << 24
"""Tokens and characters of the rows that are kept: a chat template may make any number of tokens of a row."""


@dataclass(frozen=True, slots=True)
class _Row:
    ids: bytes
    """Packed: as numbers of Python they would take ten times the room."""
    text: str | None
    """None for chat messages whose text was not asked for yet."""
    responses: Sequence[bytes] = ()
    """Packed; of a dataset that gives them."""
    label: bool | None = None
    """Of a dataset with labels."""
    item: str = ""
    """The dataset row as a JSON object; only of a run with an environment."""

    @property
    def size(self) -> int:
        return sum(map(token_count, (self.ids, *self.responses))) + len(self.text or "") + len(self.item)


@dataclass(frozen=True, slots=True)
class GivenResponse:
    """A response of the dataset."""

    ids: tuple[int, ...]
    """Token ids `[T]`."""
    spans: Sequence[tuple[int, int, bool]]
    """(start, end, whether its tokens are trained), which cover `[0, T)` without gaps."""

    def cut(self, length: int) -> GivenResponse:
        """Its first tokens, at most `length`."""
        spans = [(start, min(end, length), trained) for start, end, trained in self.spans if start < length]
        return GivenResponse(self.ids[:length], spans)

    @classmethod
    def of(cls, encoded: Sequence[int]) -> GivenResponse:
        """Reads what `PromptEncoder.encode_responses` gives: the complement stands in place of an id that is not trained."""
        spans, end = [], 0
        for trained, part in groupby(encoded, key=lambda token: token >= 0):
            start, end = end, end + len(list(part))
            spans.append((start, end, trained))
        return cls(tuple(max(token, ~token) for token in encoded), spans)


class PromptTable:
    """The rows of a prompts object. A row is encoded when it is first needed, and kept while it is among the newest.

    Every method raises DatasetError and ModelError, as `Tokenizer` does.
    """

    def __init__(self, tokenizer: Tokenizer, prompts: _Prompts) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._kept: OrderedDict[int, _Row] = OrderedDict()
        self._kept_size = 0

    @classmethod
    async def open(cls, tokenizer: Tokenizer, rows: RowFile) -> PromptTable:
        """The table. Encodes the first rows at once, so that a prompt which the model cannot take fails early."""
        table = cls(tokenizer, _Prompts(rows))
        checked, deadline = min(_CHECKED_ROWS, len(table._prompts)), time.monotonic() + _CHECK_SECONDS
        for start in range(0, checked, _ROWS_AT_ONCE):
            await table._rows(range(start, min(start + _ROWS_AT_ONCE, checked)))
            if time.monotonic() > deadline:
                break
        return table

    def other_row(self, row: int) -> int:
        """The next row of the file with another prompt, after the last one the first; the next row if many have the same prompt."""
        count, own = len(self._prompts), self._prompts[row].prompt
        following = [(row + distance) % count for distance in range(1, min(count, _LOOKED_AT) + 1)]
        return next((other for other in following if self._prompts[other].prompt != own), following[0])

    @property
    def context_length(self) -> int:
        """Tokens that fit the model."""
        return self._tokenizer.context_length

    async def ids(self, rows: Sequence[int]) -> list[tuple[int, ...]]:
        """Token ids `[P]` of each row's prompt."""
        return [unpack_ids(row.ids) for row in await self._rows(rows)]

    async def responses(self, rows: Sequence[int]) -> list[Sequence[GivenResponse]]:
        """The responses that the dataset gives to each row's prompt."""
        return [[GivenResponse.of(unpack_ids(ids)) for ids in row.responses] for row in await self._rows(rows)]

    async def labels(self, rows: Sequence[int]) -> list[bool | None]:
        """Whether each row's response is a desirable one; None in a dataset without labels."""
        return [row.label for row in await self._rows(rows)]

    async def items(self, rows: Sequence[int]) -> list[str]:
        """Each row as a JSON object, for the environment."""
        return [row.item for row in await self._rows(rows)]

    async def texts(self, rows: Sequence[int]) -> list[str]:
        """The prompts as text, for the scorer; of chat messages, the text that the template made."""
        found = dict(zip(rows, await self._rows(rows), strict=True))
        unknown = {number: row.ids for number, row in found.items() if row.text is None}
        for number, text in zip(unknown, await self._tokenizer.decode([unpack_ids(ids) for ids in unknown.values()]), strict=True):
            found[number] = replace(found[number], text=text)
            self._keep(number, found[number])
        return [found[number].text or "" for number in rows]

    async def decode(self, responses: Sequence[Sequence[int]]) -> list[str]:
        """Texts of responses, from their ids."""
        return await self._tokenizer.decode(responses)

    async def _rows(self, rows: Sequence[int]) -> list[_Row]:
        found = {number: self._kept[number] for number in rows if number in self._kept}
        missing = [number for number in dict.fromkeys(rows) if number not in found]
        prompts = [self._prompts[number] for number in missing]
        encoded = iter(await self._tokenizer.encode(prompts))
        for number, given in zip(missing, prompts, strict=True):
            text = given.prompt if isinstance(given.prompt, str) else None
            ids = pack_ids(next(encoded))
            found[number] = _Row(ids, text, [pack_ids(ids) for ids in islice(encoded, len(given.responses))], given.label, given.item)
        for number, row in found.items():
            self._keep(number, row)
        return [found[number] for number in rows]

    def _keep(self, number: int, row: _Row) -> None:
        """Makes the row the newest, and removes the oldest beyond the bounds."""
        before = self._kept.pop(number, None)
        self._kept[number] = row
        self._kept_size += row.size - (before.size if before else 0)
        while len(self._kept) > _KEPT_ROWS or self._kept_size > _KEPT_SIZE:
            _, removed = self._kept.popitem(last=False)
            self._kept_size -= removed.size


class _Prompts:
    """The prompts of a prompts object by row, each parsed when it is asked for."""

    def __init__(self, rows: RowFile) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> NumberedPrompt:
        found = json.loads(self._rows[row])
        item = json.dumps(found["item"], ensure_ascii=False) if "item" in found else ""
        return NumberedPrompt(row + 1, found["prompt"], found.get("responses", ()), found.get("label"), item)

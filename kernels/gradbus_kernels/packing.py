"""Packing without padding: all sequences of a micro-batch in one row of tokens.

Sequences of one length lie side by side, so attention sees each stretch of equal lengths as a plain batch through
a view. A prompt that several samples share is computed once where that pays: it becomes a *root*, and each response a
*branch* that attends to its root and to itself. Everything here is a function of the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Int32 = NDArray[np.int32]


class TokenSequence(Protocol):
    """A prompt and what was sampled after it."""

    @property
    def prompt_ids(self) -> Int32:
        """[P], at least one token."""
        ...

    @property
    def token_ids(self) -> Int32:
        """[T], at least one token."""
        ...


Row = TypeVar("Row", bound=TokenSequence)


@dataclass(frozen=True, slots=True)
class Run:
    """`rows` neighbouring sequences of `length` tokens each."""

    rows: int
    length: int
    root: int | None = None
    """Index of the run that holds these branches' roots; None for roots."""
    parents: torch.Tensor | None = None
    """int64 [rows]: place of each branch's root inside that run."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One row of N tokens and where the R response tokens are read from it."""

    input_ids: torch.Tensor
    """int64 [1, N]."""
    position_ids: torch.Tensor
    """int64 [1, N]."""
    runs: tuple[Run, ...]
    """Roots first, then branches; their tokens add up to N."""
    selected: torch.Tensor
    """int64 [R]: the position whose hidden state predicts each response token, in the callers' order of rows."""
    targets: torch.Tensor
    """int64 [R]: the response tokens."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of one root or branch."""

    ids: Int32
    first_position: int
    rows: tuple[int, ...]
    """Rows whose response is predicted from here: several for the root of a shared prompt."""
    root: int = -1
    """Place of a branch's root among the sorted roots."""


def split_by_tokens(sequences: Sequence[Row], budget: int) -> Iterator[Sequence[Row]]:
    """Neighbouring sequences of at most `budget` tokens together; a longer one goes alone. Order is kept."""
    start = used = 0
    for end, sequence in enumerate(sequences):
        size = len(sequence.prompt_ids) + len(sequence.token_ids)
        if end > start and used + size > budget:
            yield sequences[start:end]
            start, used = end, 0
        used += size
    if start < len(sequences):
        yield sequences[start:]


def pack(sequences: Sequence[TokenSequence], device: torch.device) -> PackedBatch:
    """Packs `sequences` (at least one). The last response token predicts nothing, so it is not an input."""
    roots, branches = _pieces(sequences)
    pieces = [*roots, *branches]
    lengths = [len(piece.ids) for piece in pieces]
    starts = np.cumsum([0, *lengths])
    read_from: list[list[NDArray[np.int64]]] = [[] for _ in sequences]
    for piece, start in zip(pieces, starts.tolist(), strict=False):
        for row in piece.rows:
            skipped = len(sequences[row].prompt_ids) - 1 - piece.first_position
            read_from[row].append(np.arange(start + max(skipped, 0), start + len(piece.ids)))

    def tensor(parts: Sequence[NDArray[np.int32] | NDArray[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64, copy=False)).to(device)

    return PackedBatch(
        input_ids=tensor([piece.ids for piece in pieces])[None],
        position_ids=tensor([np.arange(piece.first_position, piece.first_position + len(piece.ids)) for piece in pieces])[None],
        runs=_runs(roots, branches, device),
        selected=tensor([part for parts in read_from for part in parts]),
        targets=tensor([sequence.token_ids for sequence in sequences]),
    )


def _pieces(sequences: Sequence[TokenSequence]) -> tuple[list[_Piece], list[_Piece]]:
    """Roots in order of length, and branches in order of their root's and their own length."""
    rows_of: dict[bytes, list[int]] = {}
    for row, sequence in enumerate(sequences):
        rows_of.setdefault(sequence.prompt_ids.tobytes(), []).append(row)
    roots: list[_Piece] = []
    for rows in rows_of.values():
        prompt = sequences[rows[0]].prompt_ids
        if _worth_sharing(len(prompt), [len(sequences[row].token_ids) - 1 for row in rows]):
            roots.append(_Piece(prompt, 0, tuple(rows)))
        else:
            roots.extend(_Piece(np.concatenate((prompt, sequences[row].token_ids[:-1])), 0, (row,)) for row in rows)
    roots.sort(key=lambda piece: len(piece.ids))
    shared = [place for place, piece in enumerate(roots) if len(piece.rows) > 1]
    branches = [
        _Piece(sequences[row].token_ids[:-1], len(roots[place].ids), (row,), place)
        for place in shared
        for row in roots[place].rows
        if len(sequences[row].token_ids) > 1
    ]
    branches.sort(key=lambda piece: (piece.first_position, len(piece.ids)))
    return roots, branches


def _worth_sharing(prompt: int, responses: Sequence[int]) -> bool:
    """Branches need a mask, and attention then skips nothing: share only what saves as much as the branches hold."""
    return prompt * (len(responses) - 1) >= max(1, sum(responses))


def _runs(roots: Sequence[_Piece], branches: Sequence[_Piece], device: torch.device) -> tuple[Run, ...]:
    runs: list[Run] = []
    home: list[tuple[int, int]] = []  # root -> (its run, its place there)
    for length, members in groupby(roots, key=lambda piece: len(piece.ids)):
        rows = len(list(members))
        home.extend((len(runs), place) for place in range(rows))
        runs.append(Run(rows, length))
    for (_, length), members in groupby(branches, key=lambda piece: (piece.first_position, len(piece.ids))):
        places = [home[piece.root] for piece in members]
        parents = torch.tensor([place for _, place in places], device=device)
        runs.append(Run(len(places), length, places[0][0], parents))
    return tuple(runs)

"""Packs prompts and responses into one row of tokens without padding; a shared prompt is in it once.

The layout is a function of the rows alone, so equal rows give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import require
from gradbus_kernels.operators.prefix_shared_attention.layout import PrefixLayout

_SHARED_AT_LEAST = 64
"""Tokens that sharing must save; fewer do not pay for the extra calls of a group."""


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """One row of N tokens, and the positions that predict the R response tokens."""

    input_ids: Tensor
    """int64 `[1, N]`."""
    position_ids: Tensor
    """int64 `[1, N]`."""
    layout: PrefixLayout
    """Roots in order of length, then branches in order of their root and their own length."""
    selected: Tensor
    """int64 `[R]`: the position whose hidden state predicts each response token, in the callers' order of rows."""
    targets: Tensor
    """int64 `[R]`: the response tokens."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The tokens of one root or branch."""

    ids: Tensor
    rows: tuple[int, ...]
    """Rows that have response tokens predicted from this piece; several for a shared prompt."""
    parent: int | None = None


def pack_groups(prompts: Sequence[Tensor], responses: Sequence[Tensor], device: torch.device | str = "cpu") -> PackedGroups:
    """Packs rows of a prompt and its response, integers `[P]` and `[T]` on the CPU; rows with equal prompts share it.

    The last response token predicts nothing, so it is not an input. Rows with an empty response are left out. Raises ValueError,
    which names the argument.
    """
    _check(prompts, responses)
    roots = _roots(prompts, responses)
    pieces = roots + _branches(roots, prompts, responses)
    layout = PrefixLayout.of_lengths([len(piece.ids) for piece in pieces], [piece.parent for piece in pieces])
    read_from: list[list[Tensor]] = [[] for _ in prompts]
    for piece, first, depth in zip(pieces, layout.offsets, layout.depths, strict=False):
        for row in piece.rows:
            skipped = max(len(prompts[row]) - 1 - depth, 0)
            read_from[row].append(torch.arange(first + skipped, first + len(piece.ids)))
    return PackedGroups(
        input_ids=_joined([piece.ids for piece in pieces], device)[None],
        position_ids=layout.position_ids(device)[None],
        layout=layout,
        selected=_joined([part for parts in read_from for part in parts], device),
        targets=_joined(responses, device),
    )


def worth_sharing(prompt: int, rows: int) -> bool:
    """Whether a prompt of this many tokens is computed once for its rows, instead of once for each row."""
    return prompt * (rows - 1) >= _SHARED_AT_LEAST


def _roots(prompts: Sequence[Tensor], responses: Sequence[Tensor]) -> list[_Piece]:
    """Shared prompts and whole sequences, in order of length."""
    groups: dict[bytes, list[int]] = {}
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        if len(response):
            groups.setdefault(prompt.long().numpy().tobytes(), []).append(row)
    roots: list[_Piece] = []
    for rows in groups.values():
        prompt = prompts[rows[0]]
        if worth_sharing(len(prompt), len(rows)):
            roots.append(_Piece(prompt, tuple(rows)))
        else:
            roots.extend(_Piece(torch.cat((prompt, responses[row][:-1])), (row,)) for row in rows)
    return sorted(roots, key=lambda piece: len(piece.ids))


def _branches(roots: Sequence[_Piece], prompts: Sequence[Tensor], responses: Sequence[Tensor]) -> list[_Piece]:
    """Responses of shared prompts, by root and length. A response of one token has no branch, because its root predicts it."""
    return [
        _Piece(responses[row][:-1], (row,), index)
        for index, root in enumerate(roots)
        if len(root.ids) == len(prompts[root.rows[0]])
        for row in sorted(root.rows, key=lambda row: len(responses[row]))
        if len(responses[row]) > 1
    ]


def _joined(parts: Sequence[Tensor], device: torch.device | str) -> Tensor:
    empty = torch.empty(0, dtype=torch.int64)
    return torch.cat([empty, *(part.long() for part in parts)]).to(device)


def _check(prompts: Sequence[Tensor], responses: Sequence[Tensor]) -> None:
    require(len(prompts) == len(responses), "responses", f"are {len(responses)}; pass one for each of {len(prompts)} prompts")
    for name, rows in (("prompts", prompts), ("responses", responses)):
        for row, ids in enumerate(rows):
            fits = ids.dim() == 1 and ids.device.type == "cpu" and not (ids.is_floating_point() or ids.is_complex())
            found = f"{ids.dtype} {tuple(ids.shape)} on {ids.device}"
            require(fits, name, f"hold {found} in row {row}; pass integers of one dimension, on the CPU")
    for row, prompt in enumerate(prompts):
        require(len(prompt) > 0, "prompts", f"are empty in row {row}; pass at least one token, a response is predicted from it")

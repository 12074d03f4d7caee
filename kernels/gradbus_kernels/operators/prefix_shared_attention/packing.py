"""Packs prompts and responses into one row of tokens without padding; a shared prompt is in it once.

The layout is a function of the rows alone, so equal rows give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from gradbus_kernels.operators.base.arguments import require
from gradbus_kernels.operators.prefix_shared_attention.blocks import LONGEST
from gradbus_kernels.operators.prefix_shared_attention.layout import PrefixLayout

Ids = NDArray[np.integer[Any]]
Lengths = NDArray[np.int64]
_SHARED_AT_LEAST = 64
"""Tokens that sharing must save in a group that is not short; fewer do not pay for the extra calls of a group."""


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """One row of N tokens, and the positions that predict the R response tokens."""

    input_ids: Tensor
    """int64 `[1, N]`, and what pads them."""
    position_ids: Tensor
    """int64 `[1, N]`."""
    layout: PrefixLayout
    """Roots in order of length, then branches in order of their root and their own length."""
    selected: Tensor
    """int64 `[R]`: the position whose hidden state predicts each response token, in the callers' order of rows."""
    targets: Tensor
    """int64 `[R]`: the response tokens."""
    routes: Tensor | None = None
    """int64 `[N, M, k]`, padded as the ids: the experts that each token has in each of M layers with experts; -1 where the model chooses.
    None: everywhere."""

    def padded(self, tokens: int) -> PackedGroups:
        """The same with zeros behind the input ids, so that there are `tokens`, at least N; they are in no segment of the layout."""
        more = tokens - self.layout.tokens
        if not more:
            return self
        input_ids = functional.pad(self.input_ids, (0, more))
        routes = None if self.routes is None else functional.pad(self.routes, (0, 0, 0, 0, 0, more), value=-1)
        return replace(self, input_ids=input_ids, routes=routes)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A root or a branch: the first `prompt` tokens of its first row's prompt, then the first `response` tokens of its response."""

    rows: tuple[int, ...]
    """Rows that have response tokens predicted from this segment; several for a shared prompt."""
    prompt: int
    response: int
    parent: int | None = None

    def __len__(self) -> int:
        return self.prompt + self.response


def pack_groups(prompts: Sequence[Tensor], responses: Sequence[Tensor], device: torch.device | str = "cpu") -> PackedGroups:
    """Packs rows of a prompt and its response, integers `[P]` and `[T]` on the CPU; rows with equal prompts share it.

    The last response token predicts nothing, so it is not an input. Rows with an empty response are left out. Raises ValueError,
    which names the argument.
    """
    for name, rows in (("prompts", prompts), ("responses", responses)):
        for row, ids in enumerate(rows):
            fits = ids.dim() == 1 and ids.device.type == "cpu" and not (ids.is_floating_point() or ids.is_complex())
            found = f"{ids.dtype} {tuple(ids.shape)} on {ids.device}"
            require(fits, name, f"hold {found} in row {row}; pass integers of one dimension, on the CPU")
    return pack_arrays([ids.numpy() for ids in prompts], [ids.numpy() for ids in responses], device)


def pack_arrays(
    prompts: Sequence[Ids], responses: Sequence[Ids], device: torch.device | str = "cpu", routes: Sequence[Ids] | None = None
) -> PackedGroups:
    """`pack_groups` for arrays of integers of one dimension. Loops over rows only read lengths and find equal prompts.

    `routes`: of each row, the experts of all its tokens, integers `[P + T, M, k]`. A shared prompt has those of its first row.
    """
    require(len(prompts) == len(responses), "responses", f"are {len(responses)}; pass one for each of {len(prompts)} prompts")
    lengths = np.array([[len(ids) for ids in rows] for rows in (prompts, responses)], dtype=np.int64).reshape(2, -1)
    row = int(lengths[0].argmin()) if prompts else 0
    require(
        not prompts or lengths[0, row] > 0, "prompts", f"are empty in row {row}; pass at least one token, a response is predicted from it"
    )
    ids = np.concatenate([np.empty(0, np.int64), *prompts, *responses], dtype=np.int64)
    begins = (np.cumsum(lengths) - lengths.ravel()).reshape(2, -1)

    segments = _segments([ids[first : first + length].tobytes() for first, length in zip(begins[0], lengths[0], strict=True)], lengths)
    layout = PrefixLayout.of_lengths([len(segment) for segment in segments], [segment.parent for segment in segments])
    owners = [segment.rows[0] for segment in segments]
    inputs = _ranges(begins[:, owners], np.array([(segment.prompt, segment.response) for segment in segments], dtype=np.int64).T)
    routed = [*map(_first_of, routes, prompts), *map(_rest_of, routes, prompts)] if routes else None
    return PackedGroups(
        input_ids=torch.from_numpy(ids[inputs]).to(device)[None],
        position_ids=layout.position_ids(device)[None],
        layout=layout,
        selected=torch.from_numpy(_predicting(segments, layout, lengths)).to(device),
        targets=torch.from_numpy(ids[lengths[0].sum() :]).to(device),
        routes=None if routed is None else torch.from_numpy(np.concatenate(routed)[inputs]).to(device, torch.int64),
    )


def _first_of(routes: Ids, prompt: Ids) -> Ids:
    return routes[: len(prompt)]


def _rest_of(routes: Ids, prompt: Ids) -> Ids:
    return routes[len(prompt) :]


def worth_sharing(prompt: int, rows: int, branches: int) -> bool:
    """Whether a prompt of this many tokens is computed once for its rows, instead of once for each row.

    `branches`: the tokens of the rows' responses that are inputs, all but the last of each.
    """
    return rows > 1 and (prompt + branches <= LONGEST or prompt * (rows - 1) >= _SHARED_AT_LEAST)


def _segments(prompts: Sequence[bytes], lengths: Lengths) -> list[_Segment]:
    """Roots, which are shared prompts and whole sequences, in order of length; then branches in order of their root and length.

    A response of one token has no branch, because its root predicts it. `lengths`: of prompts and responses, `[2, rows]`.
    """
    prompt_lengths, response_lengths = lengths.tolist()
    groups: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts):
        if response_lengths[row]:
            groups.setdefault(prompt, []).append(row)
    roots: list[_Segment] = []
    for rows in groups.values():
        prompt_length = prompt_lengths[rows[0]]
        if worth_sharing(prompt_length, len(rows), sum(response_lengths[row] - 1 for row in rows)):
            roots.append(_Segment(tuple(rows), prompt_length, 0))
        else:
            roots += [_Segment((row,), prompt_length, response_lengths[row] - 1) for row in rows]
    roots.sort(key=len)
    return roots + [
        _Segment((row,), 0, response_lengths[row] - 1, index)
        for index, root in enumerate(roots)
        if len(root.rows) > 1
        for row in sorted(root.rows, key=response_lengths.__getitem__)
        if response_lengths[row] > 1
    ]


def _predicting(segments: Sequence[_Segment], layout: PrefixLayout, lengths: Lengths) -> Lengths:
    """The positions that predict the response tokens, `[R]`: the last of a row's prompt and those after it in its root, then its branch."""
    roots, branches = np.zeros_like(lengths)
    for index, segment in enumerate(segments):
        (roots if segment.parent is None else branches)[list(segment.rows)] = index
    offsets, prompt_lengths, response_lengths = np.array(layout.offsets), *lengths
    in_branch = np.where(branches > 0, response_lengths - 1, 0)  # segment 0 is a root
    return _ranges(np.stack([offsets[roots] + prompt_lengths - 1, offsets[branches]]), np.stack([response_lengths - in_branch, in_branch]))


def _ranges(begins: Lengths, lengths: Lengths) -> Lengths:
    """The numbers of all ranges [begin, begin + length) side by side, column by column. Both are `[2, columns]`."""
    starts, counts = begins.T.ravel(), lengths.T.ravel()
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())

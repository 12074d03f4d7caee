"""Batches for models whose tokens meet in more than attention: one row for each sequence, with nothing of another sequence before it.

Packed side by side, the state of a gated delta net, a Mamba layer or a short convolution would pass from one sequence into the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradbus_kernels.models.packing import TokenSequence

_PADDING_TOKENS, _PADDING_SHARE = 16, 8
"""A block's longest row exceeds its shortest by at most so many tokens, or by this part of it."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Blocks of rows, padded at the right with zeros to the block's longest; N tokens in all, padding included."""

    blocks: tuple[Tensor, ...]
    """int64 `[B, T]` each."""
    selected: Tensor
    """int64 `[R]`: the position, in all blocks side by side, whose hidden state predicts each response token, in order of sequences."""
    targets: Tensor
    """int64 `[R]`: the response tokens."""


def row_blocks(sequences: Sequence[TokenSequence], device: torch.device) -> RowBlocks:
    """Rows of similar lengths side by side. The last response token predicts nothing, so it is not an input."""
    inputs = [np.concatenate((row.prompt_ids, row.token_ids[:-1])) for row in sequences]
    blocks, begins, tokens = [], np.zeros(len(inputs), dtype=np.int64), 0
    for members in _similar([len(ids) for ids in inputs]):
        block = np.zeros((len(members), max(len(inputs[row]) for row in members)), dtype=np.int64)
        for place, row in enumerate(members):
            block[place, : len(inputs[row])] = inputs[row]
            begins[row] = tokens + place * block.shape[1]
        tokens += block.size
        blocks.append(torch.from_numpy(block).to(device))
    return RowBlocks(
        blocks=tuple(blocks),
        selected=torch.from_numpy(_predicting(sequences, begins)).to(device),
        targets=torch.from_numpy(np.concatenate([row.token_ids for row in sequences]).astype(np.int64)).to(device),
    )


def _similar(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indexes of rows in order of length, in groups whose padding is small."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    members: list[int] = []
    for row in order:
        if members and lengths[row] - lengths[members[0]] > max(_PADDING_TOKENS, lengths[members[0]] // _PADDING_SHARE):
            yield members
            members = []
        members.append(row)
    yield members


def _predicting(sequences: Sequence[TokenSequence], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    firsts = [begin + len(row.prompt_ids) - 1 for begin, row in zip(begins.tolist(), sequences, strict=True)]
    return np.concatenate([np.arange(first, first + len(row.token_ids)) for first, row in zip(firsts, sequences, strict=True)])

"""The policy's or a teacher's log-probabilities of the whole vocabulary, a tile of positions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_kernels.operators.base.softcap import Softcapped, softcap_in_place
from gradbus_kernels.operators.linear_logprob.head import multiply

WORKSPACE: Final = 256 << 20
"""Most bytes of a tile."""


class Tile(NamedTuple):
    """Some of N positions."""

    rows: slice
    logprobs: Tensor
    """`[n, V]`, float32 (float64 for float64); the caller may write into it."""
    level: Tensor
    """`[n, 1]`: what was taken from the softcapped logits by the temperature."""


def logprob_tiles(hidden: Tensor, weight: Tensor, temperature: Softcapped) -> Iterator[Tile]:
    """log softmax(hidden · weightᵀ / temperature) of all positions; `hidden` `[N, H]`, `weight` `[V, H]`, without gradients."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    tokens = max(1, min(len(hidden), WORKSPACE // (len(weight) * dtype.itemsize)))
    for rows in slices(len(hidden), tokens):
        logprobs = hidden.new_empty(rows.stop - rows.start, len(weight), dtype=dtype)
        multiply(hidden[rows], weight.T, logprobs)
        softcap_in_place(logprobs, temperature.softcap)
        logprobs.div_(temperature.value)
        level = logprobs.logsumexp(1, keepdim=True)
        yield Tile(rows, logprobs.sub_(level), level)

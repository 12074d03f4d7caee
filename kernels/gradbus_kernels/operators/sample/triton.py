"""Triton kernels of `sample`: every logit is read once, no row is sorted, and the ids are the reference's up to rounding.

1. `statistics_kernel`, one program for each slice of a row: its maximum and sum of exponentials, and the maxima of groups of 16 logits.
2. `candidates_kernel`, one program for each row: the groups with the highest maxima, up to a fixed number, in the order of ids. All
   logits that reach the row's `floor` are in them.
3. `draw_kernel`, one program for each row: reads those groups and finds the threshold of the support among them, bit by bit: the largest
   number that k logits reach, or logits of enough mass. A threshold at or above the floor is exact. A wider support has its threshold
   searched in the whole row. Draws without a cut-off need the slices' sums and one slice.

The slices depend on V alone, and sums run in one order, so a row's bits do not depend on the other rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import SAMPLE as LAUNCH
from gradbus_kernels.operators.sample.reference import Columns, Sampled, by_rows
from gradbus_kernels.operators.sample.triton_kernels import candidates_kernel, draw_kernel, statistics_kernel


class Read(NamedTuple):
    """Results of one pass over logits `[B, V]`."""

    slice: int
    """Tokens in a slice; a power of two."""
    sums: Tensor
    """Float32 `[2, B, V / slice]`: each slice's maximum, and its sum of exponentials relative to the maximum, at the temperature."""
    highest: Tensor
    """Int32 `[B, V / slice]`: the first group with the slice's maximum."""
    maxima: Tensor | None
    """`[B, V / group]` in the logits' dtype: each group's maximum; None without a cut-off."""


def draw_triton(logits: Tensor, uniforms: Tensor, rows: Columns) -> Sampled:
    """See `draw_rows`."""
    logits = logits.contiguous()
    read = empty_read(logits, _no_more_than_fit(LAUNCH.slice, logits), rows)
    if uniforms.numel():
        statistics_kernel[read.highest.shape](
            logits, *temperature_of(rows, logits), *read.sums, read.highest, read.maxima, *_sizes(read, logits),
            SLICE=read.slice, GROUP=LAUNCH.group, num_warps=LAUNCH.warps,
        )  # fmt: skip
    return draw_read(logits, read, uniforms, rows)


def empty_read(logits: Tensor, slice_: int, rows: Columns) -> Read:
    """Memory for the results of a pass with slices of `slice_` tokens."""
    count, vocabulary = logits.shape
    slices = triton.cdiv(vocabulary, slice_)
    groups = triton.cdiv(vocabulary, LAUNCH.group)
    sums = logits.new_empty(2, count, slices, dtype=torch.float32)
    highest = logits.new_empty(count, slices, dtype=torch.int32)
    return Read(slice_, sums, highest, logits.new_empty(count, groups) if rows.cuts else None)


def temperature_of(rows: Columns, logits: Tensor) -> tuple[Tensor, int]:
    """The temperatures as a tensor, and their stride from row to row."""
    given = rows.temperature
    column = given if isinstance(given, Tensor) else by_rows(given, torch.float32, logits)
    return column, column.stride(0)


def _no_more_than_fit(columns: int, logits: Tensor) -> int:
    """`columns`, or fewer if a row has fewer; a multiple of the group."""
    return max(LAUNCH.group, min(columns, int(triton.next_power_of_2(logits.shape[1]))))


def _sizes(read: Read, logits: Tensor) -> tuple[int, int, int]:
    """Tokens, slices and groups of a row."""
    return logits.shape[1], read.highest.shape[1], triton.cdiv(logits.shape[1], LAUNCH.group)


def draw_read(logits: Tensor, read: Read, uniforms: Tensor, rows: Columns) -> Sampled:
    """The second and third kernel."""
    vocabulary, slices, groups = _sizes(read, logits)
    ids = torch.empty(uniforms.shape, dtype=torch.int64, device=logits.device)
    logprobs, support_logprobs = logits.new_empty(2, *uniforms.shape, dtype=torch.float32).unbind()
    if not ids.numel():
        return Sampled(ids, logprobs, support_logprobs)
    unused = _UNUSED_BITS.get(logits.dtype, 0)
    room = min(LAUNCH.candidates, triton.next_power_of_2(groups))
    chosen, floors = ids.new_empty(len(logits), room, dtype=torch.int32), ids.new_empty(len(logits), dtype=torch.int32)
    if read.maxima is not None:
        candidates_kernel[(len(logits),)](
            read.maxima, chosen, floors, groups, GROUPS=triton.next_power_of_2(groups), ROOM=room, UNUSED=unused, num_warps=LAUNCH.warps
        )
    settings = [part for column in rows[1:] for part in ((None, 0) if column is None else (column, column.stride(0)))]
    draw_kernel[(len(logits),)](
        logits, *temperature_of(rows, logits), *read.sums, read.highest, chosen, floors, *settings, uniforms.contiguous(),
        ids, logprobs, support_logprobs, vocabulary, slices, uniforms.shape[1],
        CUT=rows.cuts, SLICES=triton.next_power_of_2(slices), SLICE=read.slice, GROUP=LAUNCH.group, ROOM=room,
        BLOCK=_no_more_than_fit(LAUNCH.block, logits), UNUSED=unused, num_warps=LAUNCH.warps,
    )  # fmt: skip
    return Sampled(ids, logprobs, support_logprobs)


_UNUSED_BITS = {torch.bfloat16: 16, torch.float16: 13}
"""Low bits of a float32 that are 0 for every number of this dtype."""

"""An LM head on a GPU: cuBLAS's matrix products, and between them the kernels of `selected_logprob`, in place.

The logits of some tokens exist at a time, in float32. Apart from the products they are written once and read twice. Their gradient is
written once, in the inputs' dtype, in which its products take it; float32 overwrites the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from gradbus_kernels.operators.base.block_sizes import LINEAR_LOGPROB as LAUNCH
from gradbus_kernels.operators.base.block_sizes import slices
from gradbus_kernels.operators.base.softcap import softcap_in_place, softcap_slopes
from gradbus_kernels.operators.linear_logprob.head import Differentiate, Gradients, Head, Statistics, add_product, multiply
from gradbus_kernels.operators.selected_logprob.rows import RowGradients, RowInputs, RowStatistics
from gradbus_kernels.operators.selected_logprob.triton import backward_triton, forward_triton


def statistics(head: Head, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities and entropies of all tokens, some at a time."""
    logprobs, entropies = _empty(head)
    for rows in _slices(head):
        passed = forward_triton(_logits(head, rows), entropy)
        logprobs[rows] = passed.logprobs
        if passed.entropy is not None:
            entropies[rows] = passed.entropy
    return logprobs, entropies if entropy else None


def gradients(head: Head, differentiate: Differentiate, wanted: tuple[bool, bool]) -> Gradients:
    """The same, and the gradients, to which each slice of the tokens adds its part."""
    found, grad_hidden = _empty(head), torch.empty_like(head.hidden) if wanted[0] else None
    # A sum of several products needs the accumulator's precision.
    sum_dtype = head.hidden.dtype if len(head.ids) <= _tokens(head) else head.accumulator
    grad_weight = torch.zeros_like(head.weight, dtype=sum_dtype) if wanted[1] else None
    for rows in _slices(head):
        grad_logits = _slice_gradient(head, rows, differentiate, found)
        if grad_hidden is not None:
            torch.mm(grad_logits, head.weight, out=grad_hidden[rows])
        if grad_weight is not None:
            add_product(grad_weight, grad_logits.T, head.hidden[rows])
    return Gradients(found, grad_hidden, None if grad_weight is None else grad_weight.to(head.weight.dtype))


def _slice_gradient(head: Head, rows: slice, differentiate: Differentiate, found: Statistics) -> Tensor:
    """The gradient of these tokens' logits, `[n, V]` in the inputs' dtype; their statistics go to `found`."""
    inputs = _logits(head, rows)
    passed = forward_triton(inputs, entropy=True)
    slopes = differentiate(rows, _keep(found, rows, _of(passed)))
    wanted = RowGradients(slopes.logprobs, slopes.entropies, None)
    if head.softcap is not None:
        wide = backward_triton(inputs, passed, wanted)
        return wide.mul_(softcap_slopes(inputs.logits, head.softcap)).to(head.hidden.dtype)
    is_wide = inputs.logits.dtype == head.hidden.dtype
    return backward_triton(inputs, passed, wanted, inputs.logits if is_wide else torch.empty_like(inputs.logits, dtype=head.hidden.dtype))


def _tokens(head: Head) -> int:
    """The number of tokens whose logits fit the workspace; a multiple of the tile if at least one tile fits."""
    wide, narrow = head.accumulator.itemsize, head.hidden.dtype.itemsize
    # The bounded logits are needed beside their gradient.
    size = wide * (1 if head.softcap is None else 2) + (narrow if narrow < wide else 0)
    room = max(1, LAUNCH.workspace // (size * len(head.weight)))
    return room if room < LAUNCH.tile else room - room % LAUNCH.tile


def _slices(head: Head) -> Iterator[slice]:
    return slices(len(head.ids), _tokens(head))


def _logits(head: Head, rows: slice) -> RowInputs:
    logits = head.hidden.new_empty(rows.stop - rows.start, len(head.weight), dtype=head.accumulator)
    multiply(head.hidden[rows], head.weight.T, logits)  # into `out`, because autocast would change the dtype of a result
    softcap_in_place(logits, head.softcap)
    return RowInputs(logits, head.ids[rows], None, None, head.temperature)


def _empty(head: Head) -> Statistics:
    return Statistics(*head.hidden.new_empty(2, len(head.ids), dtype=head.accumulator).unbind())


def _keep(found: Statistics, rows: slice, part: Statistics) -> Statistics:
    found.logprobs[rows], found.entropies[rows] = part
    return part


def _of(passed: RowStatistics) -> Statistics:
    return Statistics(passed.logprobs, cast("Tensor", passed.entropy))

"""A teacher's rows: its most likely tokens at each position, from hidden states and the LM head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_head, check_ids, require
from gradbus_kernels.operators.base.softcap import Softcapped
from gradbus_kernels.operators.distillation_loss.api import LEAST_LOGPROB, TeacherRows
from gradbus_kernels.operators.distillation_loss.tiles import logprob_tiles


class RowsAndLogprobs(NamedTuple):
    """What a teacher says of N positions and of the tokens there."""

    logprobs: Tensor
    """Of the given tokens, `[N]`, float32 (float64 for float64)."""
    rows: TeacherRows


@torch.no_grad()
def linear_teacher_rows(
    hidden: Tensor, weight: Tensor, ids: Tensor, count: int, *, temperature: float | Softcapped = 1.0
) -> RowsAndLogprobs:
    """The `count` most likely tokens under softmax(hidden · weightᵀ / temperature), most likely first, and log-probabilities of `ids`.

    `hidden` float `[N, H]`, `weight` `[V, H]` of the same dtype, `ids` int64 `[N]`. The mass of the other tokens is their sum, so it is
    exact where it is small, and at least exp(LEAST_LOGPROB). The logits of one tile's tokens exist at a time. Raises ValueError for
    arguments that do not fit.
    """
    scaled = Softcapped.of(temperature)
    check_head(hidden, weight, scaled.value)
    scaled.check("temperature")
    check_ids("ids", ids, (len(hidden),), len(weight), hidden)
    require(0 < count < len(weight), "count", f"is {count}; pass at least 1 and less than the vocabulary's {len(weight)}")
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    logprobs = hidden.new_empty(len(hidden), dtype=dtype)
    top, values = ids.new_empty(len(hidden), count), hidden.new_empty(len(hidden), count + 1, dtype=dtype)
    for part, every, _ in logprob_tiles(hidden, weight, scaled):
        logprobs[part] = every.gather(1, ids[part, None]).squeeze(1)
        values[part, :-1], top[part] = every.topk(count)
        values[part, -1] = every.scatter_(1, top[part], -torch.inf).logsumexp(1)
    return RowsAndLogprobs(logprobs, TeacherRows(top, values.clamp_(min=LEAST_LOGPROB)))

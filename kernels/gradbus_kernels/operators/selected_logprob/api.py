"""Log-probabilities of given tokens under given logits, with optional entropy and divergence from a second model.

Forward and backward pass each read the logits once. The bits of a row do not depend on the other rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.arguments import check_finite, check_floats, check_ids, require
from gradbus_kernels.operators.base.dispatch import Implementation, choose
from gradbus_kernels.operators.selected_logprob.cpu import backward_cpu, forward_cpu
from gradbus_kernels.operators.selected_logprob.rows import RowGradients, RowInputs, RowStatistics


class SelectedLogprob(NamedTuple):
    """`[N]` each, in nats; float32, or float64 for float64 logits. Ignored rows hold 0."""

    logprobs: Tensor
    entropy: Tensor | None
    """Entropy of the softmax over the whole vocabulary; None unless requested."""
    kl: Tensor | None
    """KL(softmax(logits) || softmax(other_logits)), summed over the whole vocabulary; None without `other_logits`."""
    other_logprobs: Tensor | None
    """Log-probabilities of the same tokens under `other_logits`, without gradient, for the sampled KL estimators (k1, k2, k3)."""


def selected_logprob(
    logits: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    entropy: bool = False,
    other_logits: Tensor | None = None,
    ignore_index: int | None = None,
) -> SelectedLogprob:
    """log softmax(logits / temperature) at `ids`, differentiable in `logits`.

    `logits` float `[N, V]`; `ids` int64 `[N]`, each in [0, V) or `ignore_index`; `other_logits` of a second, frozen model
    `[N, V]` in any float dtype, without gradient. A logit of -inf removes its token from the vocabulary. The gradient has the
    dtype of `logits`; no other tensor of size N * V is allocated.
    Raises ValueError that names a bad argument, and for rows with NaN, with +inf or without any finite logit.
    """
    _check(logits, ids, temperature, other_logits, ignore_index)
    chosen = choose("selected_logprob", logits, ("reference", "cpu", "triton"))
    if chosen == "reference":
        outcome = selected_logprob_reference(logits, ids, temperature, entropy, other_logits, ignore_index)
    else:
        valid = None if ignore_index is None else ids != ignore_index
        kept_ids = ids if valid is None else ids.where(valid, 0)
        outcome = SelectedLogprob(*_Rowwise.apply(logits, kept_ids, other_logits, valid, (temperature, entropy, chosen)))  # type: ignore[no-untyped-call]
    check_finite("logits", outcome.logprobs)
    if outcome.other_logprobs is not None:
        check_finite("other_logits", outcome.other_logprobs)
    return outcome


def selected_logprob_reference(
    logits: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    entropy: bool = False,
    other_logits: Tensor | None = None,
    ignore_index: int | None = None,
) -> SelectedLogprob:
    """The same in plain torch, differentiated by autograd; holds several `[N, V]` tensors."""
    if ignore_index is not None:
        valid = ids != ignore_index
        kept = logits.masked_fill(~valid.unsqueeze(1), 0.0)
        outcome = selected_logprob_reference(kept, ids.where(valid, 0), temperature, entropy, other_logits)
        logprobs, *others = (None if part is None else torch.where(valid, part, 0.0) for part in outcome)
        return SelectedLogprob(cast("Tensor", logprobs), *others)
    table = _log_table(logits, temperature)
    probabilities = table.exp()
    finite = table.masked_fill(probabilities == 0, 0.0)  # 0 log 0 = 0
    entropies = -(probabilities * finite).sum(1) if entropy else None
    index = ids.unsqueeze(1)
    logprobs = table.gather(1, index).squeeze(1)
    if other_logits is None:
        return SelectedLogprob(logprobs, entropies, None, None)
    other = _log_table(other_logits.detach(), temperature).to(table.dtype)
    kl = (probabilities * (finite - other.masked_fill(probabilities == 0, 0.0))).sum(1)
    return SelectedLogprob(logprobs, entropies, kl, other.gather(1, index).squeeze(1))


def _log_table(logits: Tensor, temperature: float) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide / temperature, dim=1)


def _check(logits: Tensor, ids: Tensor, temperature: float, other_logits: Tensor | None, ignore_index: int | None) -> None:
    check_floats("logits", logits, (None, None))
    rows, vocabulary = logits.shape
    require(vocabulary > 0, "logits", "has an empty vocabulary; pass at least one column")
    require(temperature > 0.0, "temperature", f"is {temperature}; pass a positive number")
    if other_logits is not None:
        check_floats("other_logits", other_logits, (rows, vocabulary), logits)
    kept_ids = ids if ignore_index is None else ids.masked_fill(ids == ignore_index, 0)
    check_ids("ids", kept_ids, (rows,), vocabulary, logits)


class _Rowwise(torch.autograd.Function):
    """The forward pass saves some numbers for each row; the backward pass computes the softmax again from them."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, other_logits: Tensor | None, valid: Tensor | None, how: tuple[float, bool, Implementation]
    ) -> tuple[Tensor | None, ...]:
        temperature, entropy, ctx.implementation = how
        inputs = RowInputs(logits.detach(), ids, None if other_logits is None else other_logits.detach(), valid, temperature)
        rows = _forward(ctx.implementation)(inputs, entropy)
        ctx.temperature = temperature
        ctx.save_for_backward(logits, ids, other_logits, valid, *rows)
        ctx.set_materialize_grads(False)
        if rows.other_logprobs is not None:
            ctx.mark_non_differentiable(rows.other_logprobs)
        return rows.logprobs, rows.entropy, rows.kl, rows.other_logprobs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None, None, None]:
        logits, ids, other_logits, valid, *rows = ctx.saved_tensors
        inputs = RowInputs(logits, ids, other_logits, valid, ctx.temperature)
        wanted = RowGradients(*gradients[:3])
        return _backward(ctx.implementation)(inputs, RowStatistics(*rows), wanted), None, None, None, None


def _forward(implementation: Implementation) -> Any:
    if implementation == "cpu":
        return forward_cpu
    from gradbus_kernels.operators.selected_logprob.triton import forward_triton  # noqa: PLC0415 -- triton only where it runs

    return forward_triton


def _backward(implementation: Implementation) -> Any:
    if implementation == "cpu":
        return backward_cpu
    from gradbus_kernels.operators.selected_logprob.triton import backward_triton  # noqa: PLC0415 -- triton only where it runs

    return backward_triton

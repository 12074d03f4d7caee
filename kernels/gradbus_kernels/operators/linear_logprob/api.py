"""Log-probabilities and entropies of given tokens from hidden states and the LM head, without the `[N, V]` matrix of logits.

The forward pass keeps `[N]` numbers and a tile of logits; the backward pass computes the logits again, some tokens at a time
(Wijmans et al. 2024, arXiv:2411.09009; Liger, arXiv:2410.10989).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradbus_kernels.operators.base.arguments import check_finite, check_head, check_ids
from gradbus_kernels.operators.base.dispatch import Implementation, choose
from gradbus_kernels.operators.base.softcap import Softcapped, softcapped
from gradbus_kernels.operators.linear_logprob import cpu
from gradbus_kernels.operators.linear_logprob.head import Backend, Coefficients, Head
from gradbus_kernels.operators.selected_logprob.api import selected_logprob_reference


class LinearLogprob(NamedTuple):
    """`[N]` each, in nats; float32, or float64 for float64 inputs."""

    logprobs: Tensor
    entropies: Tensor | None
    """None if not requested."""


def linear_logprob(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float | Softcapped = 1.0, entropy: bool = True, allow_nan: bool = False
) -> LinearLogprob:
    """Log-probabilities of `ids` under softmax(hidden · weightᵀ / temperature), and that distribution's entropies.

    `hidden` float `[N, H]`, `weight` `[V, H]` of the same dtype, `ids` int64 `[N]` in [0, V). Differentiable in hidden and
    weight; an input that needs no gradient costs no backward pass. Products use the inputs' dtype, statistics float32. `entropy=False`
    skips the entropies. `Softcapped` in the place of a temperature bounds the logits before it.
    Raises ValueError that names a bad argument, and for NaN or +inf among the logits unless `allow_nan`.
    """
    scaled = Softcapped.of(temperature)
    check_head(hidden, weight, scaled.value)
    scaled.check("temperature")
    check_ids("ids", ids, (len(hidden),), len(weight), hidden)
    chosen = choose("linear_logprob", hidden, ("reference", "cpu", "triton"))
    if chosen == "reference":
        outcome = linear_logprob_reference(hidden, weight, ids, temperature=temperature, entropy=entropy)
    else:
        outcome = LinearLogprob(*_LinearLogprob.apply(hidden, weight, ids, (scaled, entropy, chosen)))  # type: ignore[no-untyped-call]
    if not allow_nan:
        check_finite("hidden · weightᵀ", outcome.logprobs)
    return outcome


def linear_logprob_reference(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float | Softcapped = 1.0, entropy: bool = True, allow_nan: bool = True
) -> LinearLogprob:
    """The same in plain torch, differentiated by autograd; holds several `[N, V]` tensors."""
    scaled = Softcapped.of(temperature)
    found = selected_logprob_reference(softcapped(hidden @ weight.T, scaled.softcap), ids, scaled.value, entropy)
    outcome = LinearLogprob(found.logprobs, found.entropy)
    if not allow_nan:
        check_finite("hidden · weightᵀ", outcome.logprobs)
    return outcome


def backend(implementation: Implementation) -> Backend:
    """The module that computes "cpu" or "triton"."""
    if implementation == "cpu":
        return cpu
    from gradbus_kernels.operators.linear_logprob import triton  # noqa: PLC0415 -- triton only where it runs

    return triton


class _LinearLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, how: tuple[Softcapped, bool, Implementation]
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(hidden, weight, ids)
        ctx.scaled, entropy, ctx.implementation = how
        ctx.set_materialize_grads(False)
        return backend(ctx.implementation).statistics(Head(hidden.detach(), weight.detach(), ids, *ctx.scaled), entropy)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, logprobs: Tensor | None, entropies: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None]:
        if logprobs is None and entropies is None:
            return None, None, None, None
        hidden, weight, ids = ctx.saved_tensors
        head = Head(hidden, weight, ids, *ctx.scaled)
        slopes = torch.zeros_like(entropies) if logprobs is None else logprobs  # type: ignore[arg-type]
        found = backend(ctx.implementation).gradients(
            head, lambda rows, _: Coefficients(slopes[rows], None if entropies is None else entropies[rows]), ctx.needs_input_grad[:2]
        )
        return found.hidden, found.weight, None, None

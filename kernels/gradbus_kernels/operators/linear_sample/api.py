"""`sample` fused with the LM head, for small batches: no pass over the logits except the product that computes them."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_finite, check_head
from gradbus_kernels.operators.base.counter import counter_uniform
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.base.softcap import Softcapped, softcapped
from gradbus_kernels.operators.linear_sample.cpu import draw_linear_cpu
from gradbus_kernels.operators.sample.api import by_row, check_draws, sample_reference, shaped
from gradbus_kernels.operators.sample.reference import Sampled, SamplingParams, columns

_PLAIN: Final = SamplingParams()


def linear_sample(
    hidden: Tensor, weight: Tensor, seeds: Tensor, positions: Tensor, sampling: SamplingParams = _PLAIN, softcap: float | None = None
) -> Sampled:
    """`sample(softcapped(hidden @ weight.T, softcap), ...)` up to rounding.

    `hidden` float `[B, H]`, `weight` `[V, H]` of the same dtype; `seeds`, `positions`, `sampling` and the results as in `sample`.
    Raises ValueError where `sample` does. On a GPU a row's bits do not depend on the other rows; on a CPU they may, by the matrix
    product.
    """
    check_head(hidden, weight)
    check_draws(hidden, seeds, positions, sampling)
    Softcapped(1.0, softcap).check("softcap")
    chosen = choose("linear_sample", hidden, ("reference", "cpu", "triton"))
    if chosen == "reference":
        drawn = linear_sample_reference(hidden, weight, seeds, positions, sampling, softcap)
    else:
        uniforms, rows = counter_uniform(seeds, positions), columns(sampling, hidden)
        if chosen == "triton":
            from gradbus_kernels.operators.linear_sample.triton import draw_linear_triton as draw  # noqa: PLC0415 -- only where it runs
        else:
            draw = draw_linear_cpu
        drawn = shaped(draw(hidden, weight, by_row(uniforms), rows, softcap), uniforms)
    check_finite("hidden · weightᵀ", by_row(drawn.logprobs).sum(1))
    return drawn


def linear_sample_reference(
    hidden: Tensor, weight: Tensor, seeds: Tensor, positions: Tensor, sampling: SamplingParams = _PLAIN, softcap: float | None = None
) -> Sampled:
    """The same in plain torch, with all logits in memory."""
    return sample_reference(softcapped(hidden @ weight.T, softcap), seeds, positions, sampling)

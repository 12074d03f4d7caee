"""Samples tokens from logits, each by its request's seed and position alone.

Inverse transform sampling: the first token whose cumulative probability, in the order of ids, exceeds the uniform number of
(seed, position). It is exact, and sorts nothing unless a row has a cut-off. The bits of a row do not depend on the other rows.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import torch
from torch import Tensor

from gradbus_kernels.operators.base.arguments import check_finite, check_floats, require
from gradbus_kernels.operators.base.counter import counter_uniform
from gradbus_kernels.operators.base.dispatch import choose
from gradbus_kernels.operators.sample.cpu import draw_cpu
from gradbus_kernels.operators.sample.reference import Sampled, SamplingParams, columns, draw_rows

_PLAIN: Final = SamplingParams()


def sample(logits: Tensor, seeds: Tensor, positions: Tensor, sampling: SamplingParams = _PLAIN) -> Sampled:
    """Samples one token for each row, or S tokens.

    `logits` float `[B, V]`; `seeds` int64 `[B]` or `[B, S]`; `positions` int64 of the same shape, 0 or more: the index of the token in
    its request. Results have the shape of `seeds`. A logit of -inf removes its token from the vocabulary.
    Raises ValueError that names a bad argument, and for rows with NaN, with +inf or without any finite logit.
    """
    check_floats("logits", logits, (None, None))
    require(logits.shape[1] > 0, "logits", "has an empty vocabulary; pass at least one column")
    check_draws(logits, seeds, positions, sampling)
    drawn = sample_at(logits, counter_uniform(seeds, positions), sampling)
    check_finite("logits", by_row(drawn.logprobs).sum(1))
    return drawn


def sample_reference(logits: Tensor, seeds: Tensor, positions: Tensor, sampling: SamplingParams = _PLAIN) -> Sampled:
    """The same in plain torch; sorts the whole vocabulary if a row has a cut-off."""
    uniforms = counter_uniform(seeds, positions)
    return shaped(draw_rows(logits, by_row(uniforms), columns(sampling, logits)), uniforms)


def sample_at(logits: Tensor, uniforms: Tensor, sampling: SamplingParams = _PLAIN) -> Sampled:
    """`sample` from given uniform numbers in [0, 1), float64 `[B]` or `[B, S]`, for loops that compute them ahead with `counter_uniform`.

    Arguments are not checked. A row that `sample` refuses gets log-probabilities that are not finite.
    """
    chosen = choose("sample", logits, ("reference", "cpu", "triton"))
    flat, rows = by_row(uniforms), columns(sampling, logits)
    if chosen == "triton":
        from gradbus_kernels.operators.sample.triton import draw_triton  # noqa: PLC0415 -- triton only where it runs

        return shaped(draw_triton(logits, flat, rows), uniforms)
    return shaped((draw_cpu if chosen == "cpu" else draw_rows)(logits, flat, rows), uniforms)


def by_row(numbers: Tensor) -> Tensor:
    """`[B]` as `[B, 1]`; `[B, S]` as it is."""
    return numbers if numbers.dim() == 2 else numbers.unsqueeze(1)


def shaped(drawn: Sampled, like: Tensor) -> Sampled:
    """The draws in the shape of their seeds."""
    return drawn if drawn.ids.shape == like.shape else Sampled(*(part.reshape(like.shape) for part in drawn))


def check_draws(batch: Tensor, seeds: Tensor, positions: Tensor, sampling: SamplingParams) -> None:
    """Raises ValueError unless seeds, positions and settings fit the rows of `batch` `[B, ...]`."""
    for name, numbers in (("seeds", seeds), ("positions", positions)):
        require(numbers.dtype == torch.int64, name, f"is {numbers.dtype}; pass int64")
        require(numbers.device == batch.device, name, f"is on {numbers.device}; pass it on {batch.device}, where the others are")
    fits = seeds.dim() in (1, 2) and len(seeds) == len(batch)
    require(fits, "seeds", f"has shape {tuple(seeds.shape)}; pass ({len(batch)}) or ({len(batch)}, any)")
    require(positions.shape == seeds.shape, "positions", f"has shape {tuple(positions.shape)}; pass {tuple(seeds.shape)}, as seeds")
    require(not bool((positions < 0).any()), "positions", "holds a negative number; count from 0")
    for field in fields(sampling):
        _check_setting(field.name, getattr(sampling, field.name), batch)


def _check_setting(name: str, value: float | Tensor, batch: Tensor) -> None:
    if isinstance(value, Tensor):
        require(value.shape == batch.shape[:1], name, f"has shape {tuple(value.shape)}; pass a number or ({len(batch)})")
        require(value.device == batch.device, name, f"is on {value.device}; pass it on {batch.device}, where the others are")
    values = torch.as_tensor(value)
    fine, words = {
        "temperature": ((values > 0) & (values < float("inf")), "pass positive numbers; for the likeliest token pass greedy"),
        "top_k": ((values >= 0) & (values == values.long()), "pass integers, 0 (off) or more"),
        "top_p": ((values > 0) & (values <= 1), "pass numbers in (0, 1]"),
        "min_p": ((values >= 0) & (values <= 1), "pass numbers in [0, 1]"),
        "greedy": (torch.full_like(values, values.dtype == torch.bool, dtype=torch.bool), "pass bool"),
    }[name]
    wrong = values[~fine].tolist()
    require(not wrong, name, f"holds {wrong[:1]}; {words}")

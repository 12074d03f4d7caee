"""Parameters and results of `sample`, and the draw in plain torch: the reference, and the implementation where none is faster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled; each parameter is a number for all rows, or a tensor `[B]`.

    The support is the tokens that top-k, then top-p among those, and min-p keep. It is a threshold on the logits, so all tokens
    tied at the threshold are in it.
    """

    temperature: float | Tensor = 1.0
    """Divides the logits before anything else; positive."""
    top_k: int | Tensor = 0
    """Keeps the k likeliest tokens; 0: all."""
    top_p: float | Tensor = 1.0
    """Keeps the likeliest tokens until they hold this share of the probability that top-k left; 1: all."""
    min_p: float | Tensor = 0.0
    """Keeps tokens whose probability is at least this times the likeliest token's; 0: all."""
    greedy: bool | Tensor = False
    """Takes the likeliest token (the first of equal ones) instead of sampling."""


class Sampled(NamedTuple):
    """Shaped as the seeds, `[B]` or `[B, S]`."""

    ids: Tensor
    """int64."""
    logprobs: Tensor
    """float32: log-probabilities under the softmax at the temperature over the whole vocabulary."""
    support_logprobs: Tensor
    """float32: log-probabilities under that softmax, renormalised over the support."""


class Columns(NamedTuple):
    """`SamplingParams` for each row, `[B, 1]` each; None for a parameter that is off in every row."""

    temperature: float | Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    greedy: Tensor | None

    def rows(self, rows: slice) -> Columns:
        """The parameters of some rows."""
        temperature, *others = (part[rows] if isinstance(part, Tensor) else part for part in self)
        return Columns(cast("float | Tensor", temperature), *cast("list[Tensor | None]", others))

    @property
    def cuts(self) -> bool:
        """Whether any row may have a cut-off."""
        return not (self.top_k is None and self.top_p is None and self.min_p is None)

    @property
    def cut(self) -> Tensor | None:
        """Bool `[B, 1]`: rows whose support may be less than the vocabulary; None: none."""
        if not self.cuts:
            return None
        off = [part == none for part, none in ((self.top_k, 0), (self.top_p, 1.0), (self.min_p, 0.0)) if part is not None]
        return ~torch.stack(off).all(0)


def columns(sampling: SamplingParams, logits: Tensor) -> Columns:
    """The parameters for each row of `logits` `[B, V]`."""

    temperature = sampling.temperature
    return Columns(
        temperature.to(torch.float32).unsqueeze(1) if isinstance(temperature, Tensor) else temperature,
        _column(sampling.top_k, 0, torch.int64, logits),
        _column(sampling.top_p, 1.0, torch.float64, logits),
        _column(sampling.min_p, 0.0, torch.float64, logits),
        _column(sampling.greedy, False, torch.bool, logits),
    )


def _column(value: float | Tensor, off: float, dtype: torch.dtype, logits: Tensor) -> Tensor | None:
    if not isinstance(value, Tensor):
        return None if value == off else by_rows(value, dtype, logits)
    return value.to(dtype).unsqueeze(1)


def by_rows(value: float, dtype: torch.dtype, logits: Tensor) -> Tensor:
    """A number for each row, `[B, 1]`, stored once."""
    return _number(value, dtype, logits.device).expand(len(logits), 1)


@lru_cache(maxsize=256)
def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A cached tensor; on a GPU each new one would cost a kernel launch."""
    with torch.inference_mode(mode=False):
        return torch.tensor(value, dtype=dtype, device=device)


def draw_rows(logits: Tensor, uniforms: Tensor, rows: Columns) -> Sampled:
    """Samples `[B, S]` from `logits` `[B, V]` and `uniforms` float64 `[B, S]`. Float64 sums: a token of probability 0 is never drawn."""
    plain = not isinstance(rows.temperature, Tensor) and rows.temperature == 1.0
    scaled = logits.float() if plain else logits.float() / rows.temperature
    logprobs = torch.log_softmax(scaled, dim=-1)
    weights, cut = logprobs.exp(), rows.cut
    if cut is not None:
        weights.masked_fill_((logprobs < _threshold(logprobs, rows)) & cut, 0.0)
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    mass = cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, uniforms * mass, right=True)
    ids.clamp_(max=logits.shape[-1] - 1)  # only NaN gets there
    if rows.greedy is not None:
        ids = torch.where(rows.greedy, logits.argmax(dim=-1, keepdim=True), ids)
    chosen = logprobs.gather(-1, ids)
    return Sampled(ids, chosen, chosen if cut is None else torch.where(cut, (chosen - mass.log()).float().clamp(max=0.0), chosen))


def _threshold(logprobs: Tensor, rows: Columns) -> Tensor:
    """The least log-probability in each row's support, `[B, 1]`."""
    vocabulary = logprobs.shape[-1]
    falling = logprobs.sort(dim=-1, descending=True).values
    least = torch.full_like(falling[:, :1], float("-inf"))
    share = torch.ones_like(least, dtype=torch.float64)
    if rows.top_k is not None:
        off = (rows.top_k == 0) | (rows.top_k >= vocabulary)
        least = torch.where(off, least, falling.gather(-1, (rows.top_k - 1).clamp(0, vocabulary - 1)))
        share = falling.exp().masked_fill(falling < least, 0.0).sum(-1, keepdim=True, dtype=torch.float64)
        share = torch.where(off, 1.0, share)
    if rows.top_p is not None:
        reached = falling.exp().cumsum(-1, dtype=torch.float64) >= rows.top_p * share
        enough = vocabulary - reached.sum(-1, keepdim=True)  # tokens before the one that reaches the share
        last = falling.gather(-1, enough.clamp(max=vocabulary - 1))
        least = torch.maximum(least, torch.where(rows.top_p == 1.0, float("-inf"), last))
    if rows.min_p is not None:
        least = torch.maximum(least, (falling[:, :1] + rows.min_p.log()).float())
    return least

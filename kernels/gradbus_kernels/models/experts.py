"""A feed-forward part that consists of experts (Shazeer et al. 2017), on packed tokens.

The tokens of each expert are put side by side, so that an expert is one product of all its tokens. No sum depends on the order in which
anything is computed: a token's outputs are added up by rank, and the gradients of its inputs too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gradbus.formats.expert_config import ExpertsConfig
from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.models.layer_parts import GATED
from gradbus_kernels.models.routing import Routing
from gradbus_kernels.operators.linear.api import linear


class MixtureOfExperts(nn.Module):
    """Router and experts. All weights are used in this module's forward, so whoever gathers weights gathers all of them for it."""

    def __init__(self, experts: ExpertsConfig, config: ModelConfig) -> None:
        super().__init__()
        self._router, self._matrices = experts.family.router, experts.family.matrices
        self.add_module(self._router, _Matrix(experts.count, config.hidden_size))
        self.experts = nn.ModuleList(_Expert(self._matrices, config.hidden_size, experts.width) for _ in range(experts.count))
        self._routing = Routing(experts)
        self._gated: Callable[[Tensor], Tensor] = GATED[config.family.activation[1]]

    def forward(self, hidden: Tensor) -> Tensor:
        """`[N, H]` to `[N, H]`. Shares multiply and add up in float32 at least."""
        chosen, shares = self._routing(linear(hidden, getattr(self, self._router).weight))
        order = chosen.flatten().argsort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        gates, ups, downs = ([getattr(expert, name).weight for expert in self.experts] for name in self._matrices)
        inputs = _rows(hidden, order, places, chosen.shape[1])
        gate_up = torch.cat((_grouped(inputs, counts, gates), _grouped(inputs, counts, ups)), dim=-1)
        outputs = _rows(_grouped(self._gated(gate_up), counts, downs), places, order, 1).view(*chosen.shape, -1)
        return (outputs * shares[..., None]).sum(1).to(hidden.dtype)


class _Expert(nn.Module):
    """The weights of a gated linear unit (Shazeer 2020)."""

    def __init__(self, names: Sequence[str], hidden: int, width: int) -> None:
        super().__init__()
        gate, up, down = names
        for name in (gate, up):
            self.add_module(name, _Matrix(width, hidden))
        self.add_module(down, _Matrix(hidden, width))


class _Matrix(nn.Module):
    """A weight `[out, in]`; no `nn.Linear`, which adapters would be put beside."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))


def _rows(tokens: Tensor, order: Tensor, places: Tensor, copies: int) -> Tensor:
    """`[N · copies, H]`: `copies` of each token, in `order`; `places` says where each copy is then."""
    rows: Tensor = _Rows.apply(tokens, order, places, copies)  # type: ignore[no-untyped-call]
    return rows


def _grouped(rows: Tensor, counts: list[int], weights: Sequence[Tensor]) -> Tensor:
    """Neighbouring rows, as many as each count says, times the transpose of the weight in its place; `[rows, out]`.

    A weight without rows has a gradient too: zeros, as every optimiser and ZeRO expect.
    """
    products: Tensor = _Grouped.apply(rows, counts, *weights)  # type: ignore[no-untyped-call]
    return products


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, places: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.copies = copies
        return tokens.index_select(0, order if copies == 1 else order // copies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        copies = upstream.index_select(0, places)
        wide = torch.promote_types(upstream.dtype, torch.float32)
        of_tokens = copies if ctx.copies == 1 else copies.view(-1, ctx.copies, copies.shape[1]).sum(1, dtype=wide).to(upstream.dtype)
        return of_tokens, None, None, None


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], *weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, *weights)
        ctx.counts = counts
        return torch.cat([functional.linear(part, weight) for part, weight in zip(torch.split(rows, counts), weights, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, *weights = ctx.saved_tensors
        of_rows, _, *of_weights = ctx.needs_input_grad
        parts = torch.split(upstream, ctx.counts)
        inputs = torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)]) if of_rows else None
        used = zip(parts, torch.split(rows, ctx.counts), of_weights, strict=True)
        return inputs, None, *(part.t() @ own if needed else None for part, own, needed in used)

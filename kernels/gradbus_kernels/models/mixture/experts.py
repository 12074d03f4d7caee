"""A feed-forward part that consists of experts (Shazeer et al. 2017), on packed tokens.

The tokens of each expert are put side by side, so that an expert is one product of all its tokens. No sum depends on the order in which
anything is computed: a token's outputs are added up by rank, and the gradients of its inputs too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gradbus.formats.expert_config import ExpertsConfig, fused_shapes
from gradbus.formats.model_config import ModelConfig
from gradbus_kernels.models.layer_parts import GATED, clamped_swiglu
from gradbus_kernels.models.mixture.grouped_products import GroupSizes, grouped, grouped_fused
from gradbus_kernels.models.mixture.routing import Routing
from gradbus_kernels.operators.linear.api import linear


class MixtureOfExperts(nn.Module):
    """Router and experts. All weights are used in this module's forward, so whoever gathers weights gathers all of them for it."""

    def __init__(self, experts: ExpertsConfig, config: ModelConfig, shared: nn.Module | None) -> None:
        """`shared` is the part that every token goes to."""
        super().__init__()
        fused = experts.family.fused
        self._router = experts.family.router
        self.add_module(self._router, _Matrix(experts.count, config.hidden_size, biased=fused))
        self.experts = _FusedExperts(experts, config) if fused else _Experts(experts, config)
        self.routing = Routing(experts)
        """Chooses; has no parameters."""
        self._logits = _product_in_float32 if self.routing.in_float32 else linear
        self.shared_experts = shared

    def forward(self, hidden: Tensor, routes: Tensor | None = None) -> Tensor:
        """`[N, H]` to `[N, H]`. `routes`: see `Routing`."""
        mixed = self._mixed(hidden, routes)
        return mixed if self.shared_experts is None else mixed + self.shared_experts(hidden)

    def _mixed(self, hidden: Tensor, routes: Tensor | None) -> Tensor:
        """The outputs of each token's experts, multiplied by their shares and added up in float32 at least."""
        router = getattr(self, self._router)
        chosen, shares = self.routing(self._logits(hidden, router.weight, router.bias), routes)
        order = chosen.flatten().argsort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        sizes = GroupSizes(chosen.flatten().bincount(minlength=len(router.weight)))
        outputs = self.experts(_rows(hidden, order, places, chosen.shape[1]), sizes)
        return (_rows(outputs, places, order, 1).view(*chosen.shape, -1) * shares[..., None]).sum(1).to(hidden.dtype)


def _product_in_float32(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = torch.promote_types(inputs.dtype, torch.float32)
    return linear(inputs.to(wide), weight.to(wide), None if bias is None else bias.to(wide))


class _Experts(nn.ModuleList):
    """Each expert's weights are its own."""

    def __init__(self, experts: ExpertsConfig, config: ModelConfig) -> None:
        names = experts.family.matrices
        super().__init__(_Expert(names, config.hidden_size, experts.width) for _ in range(experts.count))
        self._matrices = names
        self._gated: Callable[[Tensor], Tensor] = GATED[config.family.activation[1]]

    def forward(self, rows: Tensor, sizes: GroupSizes) -> Tensor:
        """Of the rows of each expert side by side, its outputs."""
        gates, ups, downs = ([getattr(expert, name).weight for expert in self] for name in self._matrices)
        gate_up = torch.cat((grouped(rows, sizes, gates), grouped(rows, sizes, ups)), dim=-1)
        return grouped(self._gated(gate_up), sizes, downs)


class _FusedExperts(nn.Module):
    """All experts' weights are one tensor a matrix."""

    def __init__(self, experts: ExpertsConfig, config: ModelConfig) -> None:
        super().__init__()
        self._gated = partial(clamped_swiglu, limit=experts.limit, slope=experts.slope)
        for name, shape in fused_shapes(experts, config.hidden_size).items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    def forward(self, rows: Tensor, sizes: GroupSizes) -> Tensor:
        """See `_Experts`."""
        gated = self._gated(self._product("gate_up_proj", rows, sizes))
        return self._product("down_proj", gated, sizes)

    def _product(self, name: str, rows: Tensor, sizes: GroupSizes) -> Tensor:
        return grouped_fused(rows, sizes, self.get_parameter(name), self.get_parameter(f"{name}_bias"))


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

    def __init__(self, rows: int, columns: int, biased: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))
        self.bias = nn.Parameter(torch.empty(rows)) if biased else None


def _rows(tokens: Tensor, order: Tensor, places: Tensor, copies: int) -> Tensor:
    """`[N · copies, H]`: `copies` of each token, in `order`; `places` says where each copy is then."""
    rows: Tensor = _Rows.apply(tokens, order, places, copies)  # type: ignore[no-untyped-call]
    return rows


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

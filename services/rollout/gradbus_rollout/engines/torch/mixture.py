"""The experts of a decoder layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from gradbus_kernels.models.layer_parts import clamped_swiglu
from gradbus_rollout.engines.torch.arithmetic import Arithmetic
from gradbus_rollout.engines.torch.weights import ExpertWeights, UnitWeights


class Mixture:
    """Computes an expert for all rows if the router chose it for one of them.

    So the shape of a product does not depend on how many rows an expert has, and a row's bits do not depend on the other rows: an expert
    that was not chosen for a row has the share 0 and adds exactly nothing to it.
    """

    def __init__(self, experts: ExpertWeights, arithmetic: Arithmetic, gate: Callable[[Tensor], Tensor]) -> None:
        self._experts = experts
        self._arithmetic = arithmetic
        config = experts.config
        clamped = partial(clamped_swiglu, limit=config.limit, slope=config.slope)
        self._gate: Callable[[Tensor], Tensor] = clamped if config.family.fused else gate

    def __call__(self, normed: Tensor) -> Tensor:
        """Of rows `[N, H]`, the outputs of the experts chosen for each, added up in float32 in the experts' order, `[N, H]`."""
        experts = self._experts
        logits = self._arithmetic.multiply(normed.to(experts.router.dtype), experts.router, experts.router_bias)
        chosen, shares = experts.routing(logits[:, : len(experts.units)])
        of_expert = shares.new_zeros(len(normed), len(experts.units)).scatter_(1, chosen, shares).t().contiguous()
        total = shares.new_zeros(normed.shape)
        for expert in chosen.flatten().bincount().nonzero()[:, 0].tolist():
            total.addcmul_(self._unit(normed, experts.units[expert]).to(total.dtype), of_expert[expert, :, None])
        mixed = total.to(normed.dtype)
        return mixed if experts.shared is None else mixed.add_(self._unit(normed, experts.shared))

    def _unit(self, normed: Tensor, unit: UnitWeights) -> Tensor:
        gated = self._gate(self._arithmetic.multiply(normed, unit.gate_up, unit.gate_up_bias))
        return self._arithmetic.multiply(gated, unit.down, unit.down_bias)

"""The experts of a decoder layer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradbus_kernels.models.routing import Routing
from gradbus_rollout.engines.torch.arithmetic import Arithmetic
from gradbus_rollout.engines.torch.weights import ExpertWeights


class Mixture:
    """Computes an expert for all rows if the router chose it for one of them.

    So the shape of a product does not depend on how many rows an expert has, and a row's bits do not depend on the other rows: an expert
    that was not chosen for a row has the share 0 and adds exactly nothing to it.
    """

    def __init__(self, experts: ExpertWeights, arithmetic: Arithmetic, gated: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._experts = experts
        self._routing = Routing(experts.config)
        self._arithmetic = arithmetic
        self._gated = gated

    def __call__(self, normed: Tensor) -> Tensor:
        """Of rows `[N, H]`, the outputs of the experts chosen for each, added up in float32 in the experts' order, `[N, H]`."""
        multiply, experts = self._arithmetic.multiply, self._experts
        chosen, shares = self._routing(multiply(normed, experts.router)[:, : len(experts.units)])
        of_expert = shares.new_zeros(len(normed), len(experts.units)).scatter_(1, chosen, shares).t().contiguous()
        total = shares.new_zeros(normed.shape)
        for expert in chosen.flatten().bincount().nonzero()[:, 0].tolist():
            unit = experts.units[expert]
            gate, up = multiply(normed, unit.gate_up).chunk(2, dim=-1)
            total.addcmul_(multiply(self._gated(gate, up), unit.down).to(total.dtype), of_expert[expert, :, None])
        return total.to(normed.dtype)

"""A loss whose gradients exist before its backward pass."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Attached(torch.autograd.Function):
    """Attaches gradients that exist already to the loss: `apply(hidden, weight, total, [gradient of hidden, of weight])`."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        """Called by autograd."""
        _hidden, _weight, total, gradients = given
        ctx.gradients = gradients
        return cast("Tensor", total.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        """Called by autograd."""
        if not ctx.gradients:
            raise RuntimeError("the gradients of this loss were given away by its first backward pass; call its operator again")
        # Kept nowhere else, so that a parameter can take its gradient without a copy.
        hidden, weight = ctx.gradients
        ctx.gradients.clear()
        # To read the factor back from a GPU would stop it; there a product by 1 costs less.
        if grad_total.device.type != "cpu" or bool(grad_total != 1.0):
            for gradient in (hidden, weight):
                if gradient is not None:
                    gradient.mul_(grad_total)
        return hidden, weight, None, None

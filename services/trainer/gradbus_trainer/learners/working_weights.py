"""Weights in bfloat16 for the passes, beside float32 ones for the optimiser (Micikevicius et al. 2018, arXiv:1710.03740)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch.nn import Module, Parameter


class WorkingWeights:
    """A model's trained parameters, which become float32 weights rounded to `dtype`, to nearest, ties to even.

    A published version of that dtype has the same bits. Gradients are added up in float32.
    """

    def __init__(self, model: Module, trained: Mapping[str, Parameter], dtype: torch.dtype) -> None:
        """Casts all parameters of the model to `dtype`, frozen ones too. Buffers keep theirs: a model computes positions from them."""
        self.masters = {name: Parameter(parameter.detach().float()) for name, parameter in trained.items()}
        """The float32 weights by name, with the gradients."""
        for weight in model.parameters():
            weight.data = weight.data.to(dtype)  # new memory; the masters keep the old
        self._working: list[torch.Tensor] = list(trained.values())
        for parameter, master in zip(self._working, self.masters.values(), strict=True):
            parameter.register_post_accumulate_grad_hook(partial(_move_gradient, master))  # type: ignore[no-untyped-call]
        self.round()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The working weights: a function of the masters."""
        return self._working

    @torch.no_grad()
    def round(self) -> None:
        """Makes the working weights those of the masters."""
        torch._foreach_copy_(self._working, list(self.masters.values()))


def add_gradient(owner: Parameter, gradient: torch.Tensor) -> None:
    """Adds to a weight's float32 gradient; the first one may be kept as it is, in rows.

    torch's fused AdamW reads weights and gradients in the order in which they lie in memory, whatever their strides are.
    """
    if owner.grad is None:
        owner.grad = gradient.float().contiguous()
    else:
        owner.grad.add_(gradient)


def _move_gradient(master: Parameter, parameter: torch.Tensor) -> None:
    """Adds a parameter's gradient to its master's, which frees it."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is not None:
        add_gradient(master, gradient)

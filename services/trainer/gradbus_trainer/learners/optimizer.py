"""AdamW (Loshchilov and Hutter 2019) over named parameters, and the learning rate of each step.

Making a `torch.optim.AdamW` imports torch's compiler, which takes as long as importing torch does; the function
under that class does not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_
from torch.optim.adamw import adamw

from gradbus.errors import ModelError
from gradbus.spec import TrainerSpec
from gradbus_trainer.tensors.lazy_tensors import LazyTensors

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class AdamW:
    """Torch's fused AdamW. Its state is named `<parameter>.<moment>`, and there is none before the first step."""

    def __init__(self, parameters: Mapping[str, Parameter], trainer: TrainerSpec) -> None:
        self._parameters = parameters
        self._trainer = trainer
        self._owners = {f"{name}.{moment}": parameter for name, parameter in parameters.items() for moment in _MOMENTS}
        self._state: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update of the parameters that have a gradient."""
        self._make_state()
        gradients = {name: parameter.grad for name, parameter in self._parameters.items() if parameter.grad is not None}
        exp_avgs, exp_avg_sqs, steps = ([self._state[f"{name}.{moment}"] for name in gradients] for moment in _MOMENTS)
        beta1, beta2 = self._trainer.betas
        adamw(
            [self._parameters[name] for name in gradients],
            list(gradients.values()),
            exp_avgs,
            exp_avg_sqs,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=learning_rate,
            weight_decay=self._trainer.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def clip_gradient(self) -> float:
        """Clips the gradient at `max_grad_norm`; its norm before."""
        return float(clip_grad_norm_(self._parameters.values(), self._trainer.max_grad_norm))

    def forget_gradient(self) -> None:
        """Frees the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def tensors(self) -> LazyTensors:
        """The state, float32."""
        return LazyTensors.of(self._state)

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shapes of the state after a first step, in its order."""
        return {name: torch.Size() if name.endswith(".step") else owner.shape for name, owner in self._owners.items()}

    def check(self, names: Collection[str]) -> None:
        """Raises ModelError if `names` are neither none nor those of a snapshot over these parameters."""
        if names and set(names) != self._owners.keys():
            raise ModelError("the optimiser state is of another model; resume from the run's own checkpoint")

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies a snapshot; an empty one is the state before the first step."""
        self.check(tensors)
        if not tensors:
            self._state = {}
            return
        self._make_state()
        for name, tensor in self._state.items():
            tensor.copy_(tensors[name])

    def _make_state(self) -> None:
        if not self._state:
            self._state = {
                name: parameter.new_zeros(()) if name.endswith(".step") else torch.zeros_like(parameter)
                for name, parameter in self._owners.items()
            }


def learning_rate(step: int, total_steps: int, trainer: TrainerSpec) -> float:
    """Rate of step `step` (from 0) of `total_steps`: a linear warm-up, then the spec's schedule.

    Warm-up step s has (s + 1) / (warmup_steps + 1) of the peak, so that no step is wasted on a rate of 0. "linear" and
    "cosine" then fall from the peak and would reach 0 at `total_steps`.
    """
    peak, warmup = trainer.learning_rate, trainer.warmup_steps
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if trainer.lr_schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if trainer.lr_schedule == "linear":
        return peak * (1.0 - progress)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))

"""A model in DeepSpeed's engine: the passes and updates of a step, and its state by parameter."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import deepspeed
import torch
from deepspeed.utils import set_z3_leaf_modules
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from gradbus import crash_points
from gradbus.spec import TrainerSpec
from gradbus_kernels.models.mixture.experts import MixtureOfExperts
from gradbus_trainer.learners.deepspeed.ranks import Ranks
from gradbus_trainer.learners.deepspeed.sharded.config import deepspeed_config, deepspeed_optimizer
from gradbus_trainer.learners.deepspeed.sharded.held_tensors import on_device
from gradbus_trainer.learners.deepspeed.sharded.loading import whole_shape
from gradbus_trainer.learners.deepspeed.sharded.parameter_state import ParameterState

_Piece = TypeVar("_Piece")
MOMENTS: Final = ("exp_avg", "exp_avg_sq")
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
# Compiled at first use and only for inference; a rank killed meanwhile leaves a lock for which all later ranks wait forever.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class ShardedModel:
    """All ranks call the same methods in the same order: most are collectives."""

    def __init__(self, network: nn.Module, trained: Mapping[str, Parameter], trainer: TrainerSpec, ranks: Ranks) -> None:
        """`trained` are the parameters of `network` that are trained, by their names in a checkpoint."""
        self._trained, self._trainer, self._ranks = trained, trainer, ranks
        self.shapes = {name: whole_shape(parameter) for name, parameter in trained.items()}
        """Shapes of the trained weights."""
        # Ranks may choose other experts, so ZeRO-3 gathers a layer's experts together, not one when it is used.
        set_z3_leaf_modules(network, [MixtureOfExperts], raise_if_not_found=False)
        self._engine, *_ = deepspeed.initialize(
            model=network,
            optimizer=deepspeed_optimizer(trainer, list(trained.values())),
            config=deepspeed_config(trainer, sum(shape.numel() for shape in self.shapes.values())),
        )
        ranks.set_deadlines()
        self._state = ParameterState(self._engine, trainer, ranks)
        self._has_moments = False

    @property
    def network(self) -> Any:
        """The model, for passes without a gradient."""
        return self._engine.module

    @property
    def held(self) -> Sequence[Tensor]:
        """The tensors on the device; more than DeepSpeed's own `offload_states` knows.

        It knows neither stage 0 nor, in stage 3, another AdamW than its own.
        """
        return list(on_device(self._engine, self._ranks.device))

    def passes(self, pieces: Sequence[_Piece]) -> Iterator[_Piece]:
        """The micro-batches of an update, one at a time; `backward` of the last one sums the gradients over the ranks."""
        for number, piece in enumerate(pieces, 1):
            self._engine.set_gradient_accumulation_boundary(number == len(pieces))
            yield piece

    def __call__(self, *inputs: Any) -> Any:
        """A pass of the model with a gradient."""
        return self._engine(*inputs)

    def backward(self, total: Tensor) -> None:
        """Adds the gradient of this rank's share of the step's loss."""
        # DeepSpeed takes the mean over the ranks, and this makes it the sum.
        self._engine.backward(total * self._ranks.size)
        crash_points.reached(f"mid-step-{self._ranks.rank}")

    def update(self, rate: float) -> float:
        """Clips the gradient and makes the update; the norm before, which is not finite if nothing was changed."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        norm = self._clip_and_step()
        self._has_moments = self._has_moments or math.isfinite(norm)
        return norm

    def weight(self, name: str) -> Tensor:
        """A trained weight, whole, float32."""
        crash_points.reached(f"mid-gather-{self._ranks.rank}")
        return self._state.weight(self._trained[name])

    def moment(self, name: str, moment: str) -> Tensor:
        """A moment of a trained weight, whole, float32. There are none before the first step."""
        return self._state.moment(self._trained[name], moment)

    def restore(self, updates: int, source: Mapping[str, Tensor], idle_pass: Callable[[], None]) -> None:
        """Takes weights and moments from rank 0's `source`, one tensor at a time; no moments after 0 `updates`.

        `idle_pass` makes a gradient of zeros.
        """
        if updates and not self._has_moments:
            # ZeRO makes the moments in its first step; a step without gradient at a rate of 0 changes nothing else.
            idle_pass()
            self.update(0.0)
        for name, parameter in self._trained.items():
            self._state.set_weight(parameter, self._ranks.of_first(source.get(name), self.shapes[name]))
            for moment in MOMENTS if self._has_moments else ():
                value = source.get(f"{name}.{moment}") if updates else torch.zeros(self.shapes[name])
                self._state.set_moment(parameter, moment, self._ranks.of_first(value, self.shapes[name]))
        self._state.set_updates(updates)

    def close(self) -> None:
        """Frees the engine's memory."""
        self._engine.destroy()

    def _clip_and_step(self) -> float:
        if self._trainer.deepspeed.zero_stage == 0:
            norm = float(clip_grad_norm_(self._trained.values(), self._trainer.max_grad_norm))
            if not math.isfinite(norm):
                self._engine.zero_grad()
                return norm
            self._engine.step()
            return norm
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else self._forget_gradients()

    def _forget_gradients(self) -> float:
        """With an offload in bf16 DeepSpeed 0.19.8 would add the next step's gradients to those that are not finite."""
        chosen = self._trainer.deepspeed
        if chosen.zero_stage < 3 and chosen.offload != "none":
            sums = self._engine.optimizer.averaged_gradients
            sums.update(dict.fromkeys(sums))
        return math.inf

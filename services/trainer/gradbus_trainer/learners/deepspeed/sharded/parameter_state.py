"""The float32 weights and moments of a DeepSpeed engine by parameter, whatever the ZeRO stage and the number of ranks."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch.nn import Parameter, functional

from gradbus.spec import TrainerSpec
from gradbus_trainer.learners.deepspeed.ranks import Ranks


class ParameterState:
    """All ranks call the same methods in the same order: most are collectives. Moments exist after the first step."""

    def __init__(self, engine: Any, trainer: TrainerSpec, ranks: Ranks) -> None:
        self._states = engine.basic_optimizer.state
        self._stage = trainer.deepspeed.zero_stage
        self._whole = self._stage < 3 and trainer.dtype == "fp32"
        self._ranks = ranks

    def weight(self, parameter: Parameter) -> torch.Tensor:
        """The whole tensor, float32."""
        if self._whole:
            return parameter.detach()
        gathered: torch.Tensor = safe_get_full_fp32_param(parameter)
        return gathered

    def moment(self, parameter: Parameter, name: str) -> torch.Tensor:
        """The whole tensor, float32."""
        found: torch.Tensor = safe_get_full_optimizer_state(parameter, name) if self._stage else self._states[parameter][name]
        return found

    def set_weight(self, parameter: Parameter, value: torch.Tensor) -> None:
        """Takes a whole float32 tensor, the same on every rank."""
        if self._stage == 3:
            safe_set_local_fp32_param(parameter, self._shard(parameter, value))
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                parameter.data.copy_(value)
            return
        parameter.data.copy_(value)
        safe_set_full_fp32_param(parameter, value)

    def set_moment(self, parameter: Parameter, name: str, value: torch.Tensor) -> None:
        """Takes a whole float32 tensor, the same on every rank."""
        if self._stage == 3:
            safe_set_local_optimizer_state(parameter, self._shard(parameter, value), name)
        elif self._stage:
            safe_set_full_optimizer_state(parameter, value, name)
        else:
            self._states[parameter][name].copy_(value)

    def set_updates(self, updates: int) -> None:
        """Sets the number of optimiser steps, for AdamW's bias correction."""
        for state in self._states.values():
            state["step"] = torch.full_like(state["step"], updates) if torch.is_tensor(state["step"]) else updates

    def _shard(self, parameter: Parameter, value: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor; DeepSpeed's setter of whole tensors fails if the size is not a multiple of the ranks."""
        size = safe_get_local_fp32_param(parameter).numel()
        part = value.flatten()[size * self._ranks.rank : size * (self._ranks.rank + 1)]
        return functional.pad(part, (0, size - part.numel()))

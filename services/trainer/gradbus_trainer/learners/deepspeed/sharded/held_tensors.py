"""The tensors that a DeepSpeed engine holds between two steps, whatever the ZeRO stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch


def on_device(engine: Any, device: torch.device) -> Iterator[torch.Tensor]:
    """The tensors on `device` of the model, of ZeRO's buffers and of the optimiser. Several may share one storage."""
    parameters = list(engine.module.parameters())
    shards = [parameter.ds_tensor for parameter in parameters if hasattr(parameter, "ds_tensor")]
    held = [parameters, shards, list(engine.module.buffers()), vars(engine.optimizer), engine.basic_optimizer.state]
    return (tensor for tensor in _tensors(held) if tensor.device.type == device.type)


def _tensors(held: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested lists and dicts."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, Mapping):
        for value in held.values():
            yield from _tensors(value)
    elif isinstance(held, list | tuple | set):
        for value in held:
            yield from _tensors(value)

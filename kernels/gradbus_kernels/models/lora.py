"""Low-rank adapters beside frozen weights (LoRA, Hu et al. 2021, arXiv:2106.09685), named and computed as peft's.

An adapter of `….q_proj` is `base_model.model.….q_proj.lora_A.weight`, `[rank, in]`, and `base_model.model.….q_proj.lora_B.weight`,
`[out, rank]`: the names in peft's `adapter_model.safetensors`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradbus.formats.peft import PREFIX, adapter_names
from gradbus.spec import LoraSpec
from gradbus_kernels.models.language_model import LanguageModel
from gradbus_kernels.operators.linear.api import linear


class LoraLinear(nn.Module):
    """`x Wᵀ + b + scale · x Aᵀ Bᵀ` (equation 3), or without the last term while it is off. W and b are frozen."""

    def __init__(self, frozen: nn.Linear, lora: LoraSpec) -> None:
        super().__init__()
        self.on = True
        self.weight, self.bias = frozen.weight, frozen.bias
        device, dtype = frozen.weight.device, torch.promote_types(frozen.weight.dtype, torch.float32)
        self.lora_A = _Factor(frozen.in_features, lora.rank, bias=False, device=device, dtype=dtype)
        self.lora_B = _Factor(lora.rank, frozen.out_features, bias=False, device=device, dtype=dtype)
        self._scale = lora.scale

    def forward(self, inputs: Tensor) -> Tensor:
        """`[..., in]` to `[..., out]`."""
        out = linear(inputs, self.weight, self.bias)
        return out.add_(self.lora_B(self.lora_A(inputs)) * self._scale) if self.on else out


class _Factor(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return linear(inputs, self.weight)


class Merged(NamedTuple):
    """A weight of the merged model."""

    name: str
    weight: Tensor
    adapters: Mapping[str, Tensor]
    """The adapter's tensors; empty without an adapter."""


@torch.no_grad()
def add_adapters(model: LanguageModel, lora: LoraSpec, seed: int) -> dict[str, nn.Parameter]:
    """Freezes the model and puts an adapter beside each linear layer that `lora` names; the model's output does not change.

    Both are float32 at least, whatever the model's dtype. A is Kaiming-uniform, drawn from `seed` on the CPU layer by layer, and B is zero,
    as in the paper's code. Returns both by name. Raises ModelError for a family that takes no adapters.
    """
    model.family.require("lora")
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for path, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and path.rpartition(".")[2] in lora.target_modules:
            adapted = LoraLinear(layer, lora)
            drawn = torch.empty(adapted.lora_A.weight.shape)
            adapted.lora_A.weight.copy_(nn.init.kaiming_uniform_(drawn, a=math.sqrt(5.0), generator=generator))
            adapted.lora_B.weight.zero_()
            model.set_submodule(path, adapted)
    return {PREFIX + name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def is_adapted(model: nn.Module) -> bool:
    """Whether any of its layers has adapters."""
    return any(isinstance(module, LoraLinear) for module in model.modules())


@contextlib.contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside the block, the model computes its base."""
    adapted = [module for module in model.modules() if isinstance(module, LoraLinear)]
    for module in adapted:
        module.on = False
    try:
        yield
    finally:
        for module in adapted:
            module.on = True


@torch.no_grad()
def merged_weights(base: Iterable[tuple[str, Tensor]], adapters: Mapping[str, Tensor], scale: float) -> Iterator[Merged]:
    """The base's tensors in turn, those with an adapter as `W + scale · B A`; float32, computed on the base's device."""
    for name, tensor in base:
        weight, parts = tensor.float(), {part: adapters[part] for part in adapter_names(name) if part in adapters}
        if parts:
            down, up = (part.to(weight) for part in parts.values())
            weight = torch.addmm(weight, up, down, alpha=scale)
        yield Merged(name, weight, parts)

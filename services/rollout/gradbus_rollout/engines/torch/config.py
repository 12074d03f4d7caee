"""Settings of the embedded engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Literal

import torch

from gradbus.errors import SettingsError
from gradbus.formats.model_config import ModelConfig, tensor_shapes
from gradbus_kernels.operators.linear.product_dtype import product_dtype

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_WIDENED: Final = 1 << 15
"""Elements of a model's largest weight up to which a CPU computes in float32: a small product in bfloat16 takes longer."""


@dataclass(frozen=True, slots=True)
class TorchEngineConfig:
    """Every field but `kept_bytes` decides bits: two engines with equal settings give equal samples."""

    slots: int = 64
    """Samples decoded side by side; at least 4, because narrower batches use other kernels."""
    max_new_tokens: int = 128
    temperature: float = 1.0
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    max_prompt_tokens: int | None = None
    """None: as long as the model's context has room for."""
    threads: int = 1
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights; see `compute_dtype`."""
    numerics: Literal["fast", "batch_invariant"] = "fast"
    """`batch_invariant`: log-probabilities have the bits of the trainer's; on a CPU."""
    kept_bytes: int = 0
    """Of keys and values that are kept for prompts that begin as earlier ones did."""

    def __post_init__(self) -> None:
        if self.slots < 4:
            raise SettingsError(f"slots = {self.slots}: set 4 or more")
        if self.max_new_tokens < 1 or self.threads < 1 or self.temperature <= 0:
            raise SettingsError("max_new_tokens, threads and temperature must be above 0; correct the run's [rollout] section")
        if self.numerics == "batch_invariant" and self.device != "cpu":
            raise SettingsError(
                f'numerics = "batch_invariant" runs on a CPU and GRADBUS_DEVICE is {self.device}; set it to cpu, or numerics = "fast"'
            )

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` as torch names it."""
        return _DTYPES[self.dtype]

    def compute_dtype(self, model: ModelConfig) -> torch.dtype:
        """dtype of products and cache: that of the weights.

        On a CPU small models compute with them in float32, and with `fast` numerics all models whose dtype it has no instructions for.
        """
        largest = max(map(math.prod, tensor_shapes(model).values()))
        if self.device == "cpu" and largest <= _WIDENED:
            return torch.float32
        return product_dtype(self.torch_dtype, torch.device(self.device)) if self.numerics == "fast" else self.torch_dtype

    @property
    def lanes(self) -> int:
        """Prompts prefilled side by side, always this many."""
        return max(4, min(32, self.slots // 4))

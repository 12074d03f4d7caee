"""Writes a policy version to a file, before it is published."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import torch

from gradbus.errors import TrainingError
from gradbus.formats.safetensors import PYTORCH
from gradbus_kernels.weights.digest_tree import WeightsDigest
from gradbus_trainer.tensors.lazy_tensors import LazyTensors
from gradbus_trainer.tensors.scratch import Scratch, TensorFile


@dataclass(frozen=True, slots=True)
class Export:
    """A policy version as a file."""

    step: int
    digest: str
    """Over the tensors alone; engines attest it."""
    file: TensorFile
    noop: bool
    """Whether the step changed nothing, so that the bytes are those of the version before."""


BroadcastExport = Callable[[Export], Coroutine[Any, Any, None]]
"""Sends a version to the workers beside its upload; see `BroadcastPublisher.broadcast`."""


def export_version(step: int, weights: LazyTensors, noop: bool, scratch: Scratch, dtype: torch.dtype = torch.float32) -> Export:
    """Writes weights as one safetensors file that transformers loads; in a narrower `dtype`, rounded to nearest, ties to even.

    Raises StorageError, and TrainingError for weights that are not finite: a step may make them so from a finite gradient.
    """
    sums: dict[str, torch.Tensor] = {}

    def checked(name: str) -> torch.Tensor:
        tensor = weights[name]
        sums[name] = tensor.sum()  # reads the tensor once and makes no other; weights whose sum overflows are useless too
        return tensor

    digest = WeightsDigest()
    file = scratch.write(LazyTensors(weights.shapes, checked), dtype, PYTORCH, digest)
    for name in sorted(sums):  # only now: to ask a device for one number waits for all that it has been given
        if not math.isfinite(sums[name].item()):
            file.remove()
            advice = "lower trainer.learning_rate or trainer.weight_decay, and submit again" if step else "take the model's original files"
            raise TrainingError(f"weight {name} of version {step} is not finite, or the sum of its values is not; {advice}")
    return Export(step, digest.text(), file, noop)

"""Turns a version's files into the engine's weights: as they are, or as adapters merged into the base model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from gradbus.formats.peft import adapter_shapes
from gradbus.spec import LoraSpec
from gradbus_kernels.models.files import stored_tensors
from gradbus_kernels.models.lora import merged_weights
from gradbus_kernels.weights.digest import weights_digest
from gradbus_rollout.engines.torch.weights import ModelWeights, read_tensors

Tensors = Mapping[str, Tensor]


class VersionFormat(Protocol):
    """Reads the files of versions and puts them into one model's weights."""

    def read(self, files: Sequence[Path]) -> Tensors:
        """Reads the files' tensors; changes nothing. Raises ModelError unless they are a whole version of this model."""
        ...

    def replace(self, tensors: Tensors) -> str:
        """Overwrites every weight; returns the digest of the version now loaded."""
        ...


class WholeVersions:
    """A version consists of every weight."""

    def __init__(self, weights: ModelWeights) -> None:
        self._weights = weights

    def read(self, files: Sequence[Path]) -> Tensors:
        """See `VersionFormat`."""
        return read_tensors(files, self._weights.shapes, self._weights.redundant)

    def replace(self, tensors: Tensors) -> str:
        """See `VersionFormat`. The digest is computed from the engine's own tensors."""
        self._weights.replace(tensors.items())
        return self._weights.digest()


class AdapterVersions:
    """A version consists of adapters. Each load reads the base from the model's folder again, one tensor at a time."""

    def __init__(self, weights: ModelWeights, folder: Path, lora: LoraSpec) -> None:
        self._weights = weights
        self._folder = folder
        self._scale = lora.scale
        self._shapes = adapter_shapes(weights.shapes, lora)

    def read(self, files: Sequence[Path]) -> Tensors:
        """See `VersionFormat`."""
        return read_tensors(files, self._shapes)

    def replace(self, tensors: Tensors) -> str:
        """See `VersionFormat`. The digest is that of the adapters merged into the weights."""
        merged: dict[str, Tensor] = {}

        def weights() -> Iterator[tuple[str, Tensor]]:
            for name, weight, adapters in merged_weights(stored_tensors(self._folder), tensors, self._scale):
                yield name, weight
                merged.update(adapters)

        self._weights.replace(weights())
        return weights_digest(merged)

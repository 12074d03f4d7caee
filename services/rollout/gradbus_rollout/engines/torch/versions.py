"""How a version's files become the weights held: as they are, or as adapters that are merged into the base model."""

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
    """Brings versions into one model's weights."""

    def read(self, files: Sequence[Path]) -> Tensors:
        """What the files hold; changes nothing. Raises ModelError unless it is a whole version of this model."""
        ...

    def replace(self, tensors: Tensors) -> str:
        """Overwrites every weight; the digest of the version that they now are."""
        ...


class WholeVersions:
    """A version has every weight."""

    def __init__(self, weights: ModelWeights) -> None:
        self._weights = weights

    def read(self, files: Sequence[Path]) -> Tensors:
        """See `VersionFormat`."""
        return read_tensors(files, self._weights.shapes)

    def replace(self, tensors: Tensors) -> str:
        """See `VersionFormat`. The digest is that of the tensors held, read back."""
        self._weights.replace(tensors.items())
        return self._weights.digest()


class AdapterVersions:
    """A version has adapters alone. The base is read from the model's folder again for each, one tensor at a time."""

    def __init__(self, weights: ModelWeights, folder: Path, lora: LoraSpec) -> None:
        self._weights = weights
        self._folder = folder
        self._scale = lora.scale
        self._shapes = adapter_shapes(weights.shapes, lora)

    def read(self, files: Sequence[Path]) -> Tensors:
        """See `VersionFormat`."""
        return read_tensors(files, self._shapes)

    def replace(self, tensors: Tensors) -> str:
        """See `VersionFormat`. The digest is of the adapters that were added to weights which are held now."""
        held: dict[str, Tensor] = {}

        def weights() -> Iterator[tuple[str, Tensor]]:
            for name, weight, adapters in merged_weights(stored_tensors(self._folder), tensors, self._scale):
                yield name, weight
                held.update(adapters)

        self._weights.replace(weights())
        return weights_digest(held)

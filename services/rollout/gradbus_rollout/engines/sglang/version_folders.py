"""The folders that this worker makes for its server: one for each version loaded, and one for a LoRA run's base model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gradbus.formats.safetensors import check_tensors, read_headers
from gradbus_rollout.engines.base import ExpectedLogprobs
from gradbus_rollout.engines.server.version_folder import (
    LoadedVersion,
    digest,
    drop_version_folder,
    drop_version_folders,
    make_version_folder,
    model_tensors,
)
from gradbus_rollout.engines.sglang.adapters import make_adapter_folder, stored_adapters
from gradbus_rollout.engines.sglang.config import SGLangConfig, SGLangSettings

_BASE_VERSION: Final = -1


class VersionFolders:
    """Makes the folders of one worker and removes them when the server needs them no more. Its methods block."""

    def __init__(self, model: Path, config: SGLangConfig, settings: SGLangSettings, cache: Path) -> None:
        """Removes the folders of an earlier process of this worker, which was killed."""
        self._model = model
        self._tensors = model_tensors(model)
        self._lora = config.lora
        self._copy = settings.copy_weights
        # A folder for this worker alone, below one that several workers share: folders found in it are this worker's own.
        self.root = settings.weights_dir / cache.name if settings.weights_dir else cache
        self._used: set[Path] = set()
        drop_version_folders(self.root)

    def prepare(self, weights: Sequence[Path], version: int, probe: ExpectedLogprobs | None) -> LoadedVersion:
        """Makes the folder of a version. Raises ModelError, without a change, for files that are not a version of this model."""
        tensors = read_headers(weights)
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        # Checked here, because the server would ignore unknown names and answer 200.
        check_tensors(tensors, shapes if self._lora is None else stored_adapters(self._tensors, self._lora))
        total = digest(tensors)  # before the folder is made, which would stay behind if this failed
        if self._lora is None:
            folder = make_version_folder(self.root, self._model, weights, self._copy)
        else:
            folder = make_adapter_folder(self.root, self._tensors, self._lora, weights, self._copy)
        return LoadedVersion(version, total, folder, probe)

    def prepare_base(self, probe: ExpectedLogprobs | None) -> LoadedVersion:
        """Makes the folder of the run's base model, to which a LoRA run's adapters are added."""
        shards = sorted({tensor.file for tensor in self._tensors.values()})
        folder = make_version_folder(self.root, self._model, shards, self._copy)
        base_probe = None if probe is None else replace(probe, logprobs=probe.base_logprobs)
        return LoadedVersion(_BASE_VERSION, digest(self._tensors), folder, base_probe)

    def use(self, folder: Path) -> None:
        """Marks a folder as in use by the server; `keep` removes it later."""
        self._used.add(folder)

    def keep(self, folders: set[Path]) -> None:
        """Removes every folder in use but these."""
        for folder in self._used - folders:
            drop_version_folder(folder)
        self._used &= folders

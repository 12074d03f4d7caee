"""Base models in memory, by the digests of their files."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from gradbus.bus import Bucket
from gradbus.control.runs import RunRecord
from gradbus.errors import ModelError
from gradbus.objects import ObjectStore, materialise
from gradbus_reference.model import ReferenceModel
from gradbus_reference.settings import ReferenceSettings


@dataclass(frozen=True, slots=True)
class RunReference:
    """The base model of a run, and how its samples are batched."""

    model: ReferenceModel
    group_by_group: bool
    """Computes each group by itself, so that its bits do not depend on other groups (`deterministic`)."""


class ModelCache:
    """Loads a run's base model at its first use, and drops the least recently used."""

    def __init__(self, settings: ReferenceSettings, runs: Bucket, objects: ObjectStore, torch_thread: Executor) -> None:
        self._settings = settings
        self._runs = runs
        self._objects = objects
        self._torch_thread = torch_thread
        self._loaded: OrderedDict[Path, ReferenceModel] = OrderedDict()

    async def of(self, run_id: str) -> RunReference:
        """The run's base model. Raises ModelError if the run or its files are not known, and the errors of `materialise`."""
        entry = await self._runs.get(f"{run_id}.spec")
        if entry is None:
            raise ModelError(f"run {run_id} is not known; name a run that the gateway has accepted")
        spec = RunRecord.model_validate_json(entry.value).spec
        if not spec.model.files:
            raise ModelError(f"the spec of {run_id} names no model files; submit the run through the gateway")
        folder = await materialise(self._objects, spec.model.files, self._settings.cache_dir / "models")
        return RunReference(await self._load(folder), spec.is_deterministic)

    async def _load(self, folder: Path) -> ReferenceModel:
        if folder not in self._loaded:
            while len(self._loaded) >= self._settings.models:
                self._loaded.popitem(last=False)
            loop = asyncio.get_running_loop()
            model = await loop.run_in_executor(
                self._torch_thread, ReferenceModel, folder, self._settings.micro_batch_tokens, self._settings.device
            )
            self._loaded[folder] = model
        self._loaded.move_to_end(folder)
        return self._loaded[folder]

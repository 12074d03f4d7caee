"""The frozen models in memory, by the files they consist of."""

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
class Frozen:
    """A run's reference."""

    model: ReferenceModel
    group_by_group: bool
    """Each group alone, so that no neighbour decides its bits (`deterministic`)."""


class Models:
    """Loads a run's base model when it is first asked for; the one unused for longest makes room."""

    def __init__(self, settings: ReferenceSettings, runs: Bucket, objects: ObjectStore, torch_thread: Executor) -> None:
        self._settings = settings
        self._runs = runs
        self._objects = objects
        self._torch_thread = torch_thread
        self._loaded: OrderedDict[Path, ReferenceModel] = OrderedDict()

    async def of(self, run_id: str) -> Frozen:
        """The run's reference. Raises ModelError if the run or its files are not known, and what `materialise` raises."""
        entry = await self._runs.get(f"{run_id}.spec")
        if entry is None:
            raise ModelError(f"run {run_id} is not known; ask for a run that the gateway has taken")
        spec = RunRecord.model_validate_json(entry.value).spec
        if not spec.model.files:
            raise ModelError(f"the spec of {run_id} names no model files; submit the run through the gateway")
        folder = await materialise(self._objects, spec.model.files, self._settings.cache_dir / "models")
        return Frozen(await self._load(folder), spec.is_deterministic)

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

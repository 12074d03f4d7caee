"""The frozen models of runs, base models, teachers, reward models and versions, held in memory by their files' digests and dtypes."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from gradbus.bus import Bucket
from gradbus.control.runs import RunRecord
from gradbus.errors import ModelError, first_line
from gradbus.formats.frozen import frozen_names
from gradbus.formats.tokens import ID_DTYPE, LOGPROB_DTYPE
from gradbus.memory.resident import return_memory
from gradbus.objects import ObjectStore, materialise
from gradbus.objects.folder import partial_folder
from gradbus.spec import LoraSpec, ModelSpec, RewardModelSpec, RunSpec, TeacherSpec
from gradbus.telemetry import get_logger
from gradbus_kernels.models.causal_lm import head_inputs, load_causal_lm, load_weights, packed_logprobs
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_kernels.models.dtypes import DTYPES
from gradbus_kernels.models.loading import enough_memory, return_device_memory
from gradbus_kernels.models.lora import add_adapters
from gradbus_kernels.models.packing import TokenSequence, split_by_tokens
from gradbus_kernels.models.reward.model import load_reward_model
from gradbus_kernels.operators import linear_teacher_rows
from gradbus_reference.settings import ReferenceSettings

_log = get_logger(__name__)
Value = TypeVar("Value", np.float32, np.void)
_LOOKS = 4
"""Looks for idle models in the time after which they are dropped."""


def row_dtype(count: int) -> np.dtype[np.void]:
    """What a teacher says of a position: of its token, and its `count` most likely tokens with their and all others' log-probabilities."""
    return np.dtype([("own", LOGPROB_DTYPE), ("ids", ID_DTYPE, (count,)), ("logprobs", LOGPROB_DTYPE, (count + 1,))])


@dataclass(frozen=True, slots=True)
class VersionWeights:
    """The trained weights of a version, by the names that it is stored with, to take the place of the base model's."""

    tensors: Mapping[str, torch.Tensor]
    lora: LoraSpec | None = None
    """Given if they are adapters, which stand beside the base model's weights."""


class ReferenceModel:
    """Token log-probabilities under frozen weights."""

    def __init__(
        self,
        folder: Path,
        budget: int = 8192,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        version: VersionWeights | None = None,
    ) -> None:
        """Loads the model in `folder`; `budget` is the number of tokens of one forward pass, which computes in `dtype`.

        With `version` it has that one's weights. Raises ModelError and OutOfMemoryError.
        """
        self._model = load_causal_lm(folder, dtype, device)
        if version is not None:
            with enough_memory():
                self._load(version, dtype)
        self._model.requires_grad_(False)
        self._budget = budget

    def _load(self, version: VersionWeights, dtype: torch.dtype) -> None:
        if version.lora is None:
            load_weights(self._model.stored(self._model.trained_parameters()), version.tensors)
            return
        adapters = add_adapters(self._model, version.lora, 0)
        load_weights(adapters, version.tensors)
        for parameter in adapters.values():
            parameter.data = parameter.data.to(dtype)  # the trainer computes with rounded adapters too

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary: every token id is below it."""
        return self._model.vocab_size

    def logprobs(self, sequences: Sequence[TokenSequence], temperature: float) -> list[NDArray[np.float32]]:
        """Log-probabilities of the response tokens: one float32 `[T]` a sequence, in order. Logits are divided by `temperature`.

        Raises OutOfMemoryError.
        """
        return self._by_sequence(sequences, lambda part: packed_logprobs(self._model, part, temperature)[0].cpu().numpy())

    def rows(self, sequences: Sequence[TokenSequence], temperature: float, count: int) -> list[NDArray[np.void]]:
        """The same with the `count` most likely tokens at each position: one array `[T]` of `row_dtype(count)` a sequence, in order."""

        def found(part: Sequence[TokenSequence]) -> NDArray[np.void]:
            inputs = head_inputs(self._model, part)
            own, rows = linear_teacher_rows(*inputs, count, temperature=self._model.tempered(temperature))
            every = np.empty(len(own), row_dtype(count))
            every["own"], every["ids"], every["logprobs"] = (part.cpu().numpy() for part in (own, rows.ids, rows.logprobs))
            return every

        return self._by_sequence(sequences, found)

    @torch.inference_mode()
    def _by_sequence(
        self, sequences: Sequence[TokenSequence], compute: Callable[[Sequence[TokenSequence]], NDArray[Value]]
    ) -> list[NDArray[Value]]:
        results: list[NDArray[Value]] = []
        with enough_memory():
            for part in split_by_tokens(sequences, self._budget, self._model.shares_prompts):
                results.extend(np.split(compute(part), np.cumsum([len(sequence.token_ids) for sequence in part])[:-1]))
        return results


class ScoringModel:
    """Scores under frozen weights of a reward model. One thread calls its methods."""

    def __init__(
        self,
        folder: Path,
        budget: int = 8192,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        version: VersionWeights | None = None,
    ) -> None:
        """Loads the model in `folder`; `budget` is the number of tokens of one forward pass. Its decoder computes in `dtype`.

        With `version` it has that one's weights. Raises ModelError and OutOfMemoryError.
        """
        self._model = load_reward_model(folder, dtype, device)
        if version is not None:
            with enough_memory():
                load_weights(dict(self._model.named_parameters()), version.tensors)
        self._model.requires_grad_(False)
        self._budget = budget
        self._off_device: OffDevice | None = None
        self._used_at = time.monotonic()

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary: every token id is below it."""
        return self._model.config.vocab_size

    @torch.inference_mode()
    def scores(self, sequences: Sequence[TokenSequence]) -> list[NDArray[np.float32]]:
        """The score of each sequence at its last token: one float32 `[1]` a sequence, in order. Raises OutOfMemoryError."""
        with enough_memory():
            if self._off_device is not None:
                self._off_device.reload()
                self._off_device = None
            parts = [self._model(part).cpu().numpy() for part in split_by_tokens(sequences, self._budget)]
        self._used_at = time.monotonic()
        return [score for part in parts for score in part[:, None]]

    def leave_device(self, idle_seconds: float) -> bool:
        """Moves the weights to host memory if they have scored nothing for so long, until the next `scores`; whether it moved them.

        They come back with the same bits.
        """
        if self._off_device is not None or time.monotonic() - self._used_at < idle_seconds:
            return False
        self._off_device = OffDevice([*self._model.parameters(), *self._model.buffers()])
        return True


FrozenModel = ReferenceModel | ScoringModel
Model = TypeVar("Model", ReferenceModel, ScoringModel)


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a run, or the adapters with which it begins."""

    files: tuple[str, ...]
    """Digests."""
    lora: LoraSpec | None
    dtype: torch.dtype
    """Of the weights that the run publishes."""


_Key = tuple[Path, torch.dtype, type[FrozenModel], _Version | None]


@dataclass(frozen=True, slots=True)
class RunModel(Generic[Model]):
    """A frozen model of a run, and how the run's samples are batched."""

    model: Model
    group_by_group: bool
    """Computes each group by itself, so that its bits do not depend on other groups (`deterministic`)."""


class ModelCache:
    """Loads a run's models at their first use, and drops the least recently used."""

    def __init__(self, settings: ReferenceSettings, runs: Bucket, objects: ObjectStore, torch_thread: Executor) -> None:
        self._settings = settings
        self._runs = runs
        self._objects = objects
        self._torch_thread = torch_thread
        self._loaded: OrderedDict[_Key, FrozenModel] = OrderedDict()
        self._used_at: dict[_Key, float] = {}
        self._leaving: set[_Key] = set()
        """Models that leave the accelerator while they are idle, as the run says that used them last."""
        self._has_accelerator = torch.device(settings.device).type != "cpu"

    async def tend_idle(self) -> None:
        """Drops models that nobody has used for a while, and moves some off the accelerator before that; runs until cancelled."""
        while True:
            await asyncio.sleep(min(self._settings.idle_seconds, self._settings.offload_seconds) / _LOOKS)
            await self._drop_idle()
            if self._has_accelerator:
                await self._offload_idle()

    async def _drop_idle(self) -> None:
        """Those whose runs are over or paused."""
        idle = [key for key, used_at in self._used_at.items() if time.monotonic() - used_at > self._settings.idle_seconds]
        for key in idle:
            del self._used_at[key]
            self._loaded.pop(key, None)
        self._leaving.intersection_update(self._loaded)
        if idle:
            await asyncio.to_thread(_return_memory)

    async def _offload_idle(self) -> None:
        for key in tuple(self._leaving):
            model = self._loaded.get(key)  # None if it was dropped, perhaps while another one moved
            if not isinstance(model, ScoringModel):
                continue
            # In the thread that scores, so never beside a pass.
            moved = asyncio.get_running_loop().run_in_executor(self._torch_thread, model.leave_device, self._settings.offload_seconds)
            try:
                if await moved:
                    _log.info("reward_model_offloaded", folder=key[0].name)
            except RuntimeError as error:  # torch's, of host memory that cannot be had or pinned
                self._leaving.discard(key)
                _log.warning("reward_model_stays", folder=key[0].name, until="its next use", error=first_line(error))

    async def drop_all(self) -> None:
        """Drops every model; each is loaded again at its next use."""
        self._loaded.clear()
        self._used_at.clear()
        await asyncio.to_thread(_return_memory)

    async def policy_of(self, run_id: str, version_files: Sequence[str] = ()) -> RunModel[ReferenceModel]:
        """The run's base model, or the version of these files.

        Raises ModelError if the run or its files are not known, and the errors of `materialise`.
        """
        spec = await self._spec_of(run_id)
        return await self._model_of(run_id, spec, spec.model, ReferenceModel, version_files)

    async def teachers_server(self, run_id: str) -> TeacherSpec | None:
        """The run's teacher, if it is a server. Raises ModelError if the run is not known."""
        teacher = (await self._spec_of(run_id)).teacher
        return teacher if teacher is not None and teacher.url is not None else None

    async def teacher_of(self, run_id: str) -> RunModel[ReferenceModel]:
        """The run's teacher. Raises ModelError if the run has none, and as `policy_of` does."""
        spec = await self._spec_of(run_id)
        if spec.teacher is None:
            raise ModelError(f"the spec of {run_id} names no teacher; ask for the base model's log-probabilities")
        return await self._model_of(run_id, spec, spec.teacher, ReferenceModel)

    async def reward_of(self, run_id: str, version_files: Sequence[str] = ()) -> RunModel[ScoringModel]:
        """The run's reward model, or the version of these files of a run that trains one.

        Raises ModelError if the run has none, and as `policy_of` does.
        """
        spec = await self._spec_of(run_id)
        if version_files:
            return await self._model_of(run_id, spec, spec.model, ScoringModel, version_files)
        if spec.reward.model is None:
            raise ModelError(f"the spec of {run_id} names no reward model; ask the reward service for scores")
        return await self._model_of(run_id, spec, spec.reward.model, ScoringModel)

    async def _spec_of(self, run_id: str) -> RunSpec:
        entry = await self._runs.get(f"{run_id}.spec")
        if entry is None:
            raise ModelError(f"run {run_id} is not known; name a run that the gateway has accepted")
        return RunRecord.model_validate_json(entry.value).spec

    async def _model_of(
        self, run_id: str, spec: RunSpec, model: ModelSpec, kind: type[Model], version_files: Sequence[str] = ()
    ) -> RunModel[Model]:
        if not model.files:
            raise ModelError(f"the spec of {run_id} names no model files; submit the run through the gateway")
        folder = await materialise(self._objects, model.files, self._settings.cache_dir / "models")
        version = _Version(tuple(version_files), spec.trainer.lora, DTYPES[spec.version_dtype]) if version_files else None
        # In another dtype than the trainer's, the rounding would be a part of the KL, or of the held-out loss.
        key = (folder, DTYPES[spec.trainer.dtype], kind, version)
        found = await self._load(kind, key)
        leaves = isinstance(model, RewardModelSpec) and model.offload
        (self._leaving.add if leaves else self._leaving.discard)(key)
        return RunModel(found, spec.is_deterministic)

    async def _load(self, kind: type[Model], key: _Key) -> Model:
        folder, dtype, _, version = key
        found = self._loaded.get(key)
        if not isinstance(found, kind):
            while len(self._loaded) >= self._settings.models:
                self._loaded.popitem(last=False)
            loop = asyncio.get_running_loop()
            budget, device = self._settings.micro_batch_tokens, self._settings.device
            weights = VersionWeights(await self._tensors(version), version.lora) if version else None
            found = await loop.run_in_executor(self._torch_thread, kind, folder, budget, device, dtype, weights)
            self._loaded[key] = found
        self._loaded.move_to_end(key)
        self._used_at[key] = time.monotonic()
        return found

    async def _tensors(self, version: _Version) -> dict[str, torch.Tensor]:
        """What the version trains, checked against the digests and mapped: the mappings survive their files.

        Adapters of another run, with which this one begins, may be wider than its versions: they are rounded as its version 0 is.
        """
        tensors: dict[str, torch.Tensor] = {}
        async with partial_folder(self._settings.cache_dir / "versions") as folder:
            for at, digest in enumerate(version.files):
                file = await self._objects.blob_file(digest, folder / str(at))
                tensors |= await asyncio.to_thread(_trained_tensors, file, version.dtype)
        return tensors


def _trained_tensors(file: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Those of the file that are not frozen, in `dtype`; mapped if it has that already."""
    loaded = load_file(file)
    frozen = frozen_names(loaded)
    return {name: tensor.to(dtype) for name, tensor in loaded.items() if name not in frozen}


def _return_memory() -> None:
    return_device_memory()
    return_memory()

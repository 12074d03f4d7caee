"""`Engine` on plain torch: a thread that owns the model and the slots, and its asyncio side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Self

import structlog
import torch

from gradbus.errors import GradbusError, ModelError, first_line
from gradbus.formats.model_weights import check_weights
from gradbus.spec import LoraSpec
from gradbus_kernels.models.device_memory import OffDevice
from gradbus_kernels.models.loading import is_out_of_memory, loading, memory_advice
from gradbus_rollout.engines.base import ExpectedLogprobs, GroupCompletion, GroupLimits, PromptGroup, check_group
from gradbus_rollout.engines.torch.arithmetic import arithmetic_for
from gradbus_rollout.engines.torch.config import TorchEngineConfig
from gradbus_rollout.engines.torch.model import DecoderModel, read_supported_config
from gradbus_rollout.engines.torch.samples.calls import GenerateCall
from gradbus_rollout.engines.torch.scheduler import Scheduler
from gradbus_rollout.engines.torch.version_format import AdapterVersions, VersionFormat, WholeVersions
from gradbus_rollout.engines.torch.weights import empty_like

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class _LoadCommand:
    """Replace the weights by a version's, between two decode steps."""

    files: Sequence[Path]
    version: int
    future: Future[str] = field(default_factory=Future)


@dataclass(eq=False, slots=True)
class _ReleaseCommand:
    """Free the device's memory, between two decode steps."""

    future: Future[None] = field(default_factory=Future)


class _CloseCommand:
    """End the loop."""


_Command = GenerateCall | _LoadCommand | _ReleaseCommand | _CloseCommand


class TorchEngine:
    """`Engine` on plain torch. `generate` and `load` may be called from any event loop."""

    def __init__(self, model: DecoderModel, config: TorchEngineConfig, versions: VersionFormat | None = None) -> None:
        """`versions` reads the files of a version; the default expects every weight."""
        self._model = model
        self._versions = versions or WholeVersions(model.weights)
        self._config = config
        self._scheduler = Scheduler(model, config)
        self._version: int | None = None
        self._progress = 0
        self._off_device: OffDevice | None = None
        """Weights and caches, from a release to the next load."""
        self._broken: str | None = None
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._lock = Lock()  # so that no command is left in the inbox once the loop has ended
        # Starts with the first command, so an engine that nobody uses, because its run ended meanwhile, is freed.
        self._thread = Thread(target=self._run, name="torch-engine", daemon=True)

    @classmethod
    def from_folder(cls, folder: Path, config: TorchEngineConfig, lora: LoraSpec | None = None) -> Self:
        """An engine shaped by the folder's config.json, without weights until the first `load`. Raises ModelError and SettingsError.

        With `lora` a version is adapters, and the base is the folder's model.
        """
        with loading():
            model_config = read_supported_config(folder, config.numerics)
            check_weights(folder, model_config)
            like = empty_like(config.device, config.compute_dtype(model_config))
            model = DecoderModel(model_config, like, arithmetic_for(config.numerics), config.torch_dtype)
            model.weights.correct(folder)
            return cls(model, config, None if lora is None else AdapterVersions(model.weights, folder, lora))

    @property
    def name(self) -> str:
        """Engine, device and dtype of the weights, e.g. `torch 2.13.0 cpu float32`, and the numerics if they are not `fast`."""
        numerics = "" if self._config.numerics == "fast" else f" {self._config.numerics}"
        return f"torch {torch.__version__} {self._config.device} {self._config.dtype}{numerics}"

    @property
    def version(self) -> int | None:
        """The version loaded; None before the first load."""
        return self._version

    @property
    def limits(self) -> GroupLimits:
        """What it takes."""
        model, config = self._model.config, self._config
        return GroupLimits(model.context_length, model.vocab_size, config.max_new_tokens, config.max_prompt_tokens)

    async def progress(self) -> int:
        """See `Engine.progress`: decode steps and commands begun, and chunks of prompts computed."""
        return self._progress + self._scheduler.prefilled_chunks

    async def load(self, weights: Sequence[Path], version: int, probe: ExpectedLogprobs | None = None) -> str:  # noqa: ARG002
        """See `Engine.load`. The swap falls between two decode steps. The files are mapped: only the swap reads their bytes."""
        load = _LoadCommand(weights, version)
        self._post(load)
        return await asyncio.wrap_future(load.future)

    async def generate(self, groups: Sequence[PromptGroup]) -> list[GroupCompletion]:
        """See `Engine.generate`."""
        if self._version is None:
            raise ModelError("the engine has no weights yet; load a version first")
        limits = self.limits
        for group in groups:
            check_group(group, limits)
        if not groups:
            return []
        call = GenerateCall(groups)
        self._post(call)
        return await asyncio.wrap_future(call.future)

    async def release(self) -> None:
        """See `Engine.release`. Keys and values of samples in flight wait in host memory, so the samples go on with the same bits."""
        release = _ReleaseCommand()
        self._post(release)
        await asyncio.wrap_future(release.future)

    async def close(self) -> None:
        """See `Engine.close`. May be called again."""
        with contextlib.suppress(ModelError):  # the loop has ended
            self._post(_CloseCommand())
        await asyncio.to_thread(self._thread.join)

    def _post(self, command: _Command) -> None:
        with self._lock:
            if self._broken is not None:
                raise ModelError(self._broken)
            self._inbox.put(command)
            if self._thread.ident is None:
                self._thread.start()

    def _run(self) -> None:
        reason = "the engine is closed; start another"
        try:
            torch.set_num_threads(self._config.threads)
            with torch.inference_mode():
                while self._take_commands():
                    self._progress += 1
                    self._scheduler.step()
        except BaseException as error:  # noqa: BLE001 -- the thread's boundary: the callers get the error, also a library's panic
            _log.exception("engine_failed", engine=self.name, version=self._version)
            reason = f"the engine broke: {_cause(error)}"
        self._refuse_all(reason)

    def _take_commands(self) -> bool:
        """Act on all commands in the inbox; wait for one only when no sample can run. False to end the loop."""
        while self._off_device is not None or not self._scheduler.calls or not self._inbox.empty():
            command = self._inbox.get()
            self._progress += 1
            match command:
                case GenerateCall() as call:
                    self._scheduler.submit(call)
                case _LoadCommand() as load:
                    self._load_version(load)
                case _ReleaseCommand() as release:
                    self._leave_device(release.future)
                case _CloseCommand():
                    return False
        return True

    def _leave_device(self, done: Future[None]) -> None:
        try:
            if self._off_device is None:
                self._scheduler.drop_buffers()
                self._off_device = OffDevice(self._scheduler.caches, self._model.weights.tensors)
        except BaseException as error:
            _settle(done, ModelError(f"the engine could not release the device: {_cause(error)}"))
            raise
        _answer(done, None)

    def _load_version(self, load: _LoadCommand) -> None:
        try:
            tensors = self._versions.read(load.files)
        except ModelError as error:  # nothing has changed yet
            _settle(load.future, error)
            return
        try:
            if self._off_device is not None:
                self._off_device.reload()
            digest = self._versions.replace(tensors)
            self._scheduler.begin_version(load.version)
            self._version = load.version
            self._off_device = None
        except BaseException as error:
            _settle(load.future, ModelError(f"loading version {load.version} broke the engine: {_cause(error)}"))
            raise
        _answer(load.future, digest)

    def _refuse_all(self, reason: str) -> None:
        with self._lock:
            self._broken = reason
            waiting: list[Future[Any]] = [call.future for call in self._scheduler.calls]
            while not self._inbox.empty():
                command = self._inbox.get()
                if not isinstance(command, _CloseCommand):
                    waiting.append(command.future)
        for future in waiting:
            _settle(future, ModelError(reason))


def _cause(error: BaseException) -> str:
    meanwhile: BaseException | None = error
    while meanwhile is not None:  # what ends a capture of a GPU's work may raise another error over the first
        if is_out_of_memory(meanwhile):
            return memory_advice(meanwhile)
        meanwhile = meanwhile.__context__
    return str(error) if isinstance(error, GradbusError) else f"{type(error).__name__}: {first_line(error)}; see the worker's log"


def _answer(future: Future[Any], result: str | None) -> None:
    """Give a future its result, unless its caller was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def _settle(future: Future[Any], error: ModelError) -> None:
    """Fail a future, unless its caller was cancelled."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)

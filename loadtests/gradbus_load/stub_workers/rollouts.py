"""A rollout worker whose loop, heartbeat, claims, groups and versions are the real ones: only the engine and the tokenizer are stubs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import numpy as np

from gradbus.control.runs import RunRecord
from gradbus.experience import GroupStore
from gradbus.formats.safetensors import read_headers
from gradbus.formats.tokens import LOGPROB_DTYPE
from gradbus.process import WorkerClients
from gradbus.telemetry import run_metrics
from gradbus.v1.group_pb2 import Group
from gradbus.v1.task_pb2 import Task
from gradbus_rollout.engines.base import Completion, ExpectedLogprobs, GroupCompletion, PromptGroup, TokenSpan
from gradbus_rollout.engines.server.version_folder import digest
from gradbus_rollout.settings import Settings
from gradbus_rollout.tasks.generation_traces import TaskTimes
from gradbus_rollout.tasks.samples import group_header, group_message, prompt_group
from gradbus_rollout.weights.version_loader import VersionLoader
from gradbus_rollout.worker import RolloutWorker, WorkerParts

_PROMPT: Final = (1, 2, 3)
_RESPONSE: Final = (4, 5, 6, 7)
_LOGPROBS: Final = np.full(len(_RESPONSE), -1.0, LOGPROB_DTYPE).tobytes()
_LETTERS: Final = "abcdefgh"
"""One of which the grader of `material.spec` looks for: rewards vary within a group."""


@dataclass(slots=True)
class Digests:
    """Digests of versions by their files: a thousand workers of one machine would read the same file a thousand times."""

    _known: dict[tuple[Path, ...], str] = field(default_factory=dict)

    def of(self, files: Sequence[Path]) -> str:
        """The digest of the tensors in the files, read at the first call. A stored file never changes."""
        key = tuple(files)
        if key not in self._known:
            self._known[key] = digest(read_headers(files))
        return self._known[key]


class HeldVersions:
    """A file with a line for each version that a worker of this process has loaded.

    The line has run, version, and the Unix seconds at which the worker took the run up, was told of the version, and held it.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[HeldVersions]:
        """Appends to `path` inside the block."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", buffering=1) as file:
            yield cls(file)

    def add(self, run_id: str, version: int, joined: float, told_seconds: float) -> None:
        """A worker holds the version now, of which it was told so many seconds ago. `joined`: when it took the run up."""
        now = time.time()
        self._file.write(f"{run_id} {version} {joined:.6f} {now - told_seconds:.6f} {now:.6f}\n")


class StubEngine:
    """`Engine` that holds a version by its digest, and answers a call after a fixed time."""

    name = "stub"

    def __init__(self, digests: Digests, seconds: float, held: Callable[[int], None]) -> None:
        """`held` is told of each version that it loads."""
        self._digests = digests
        self._seconds = seconds
        self._held = held
        self._calls = 0
        self.version: int | None = None
        """See `Engine.version`."""

    async def progress(self) -> int:
        """See `Engine.progress`."""
        return self._calls

    async def load(self, weights: Sequence[Path], version: int, probe: ExpectedLogprobs | None = None) -> str:  # noqa: ARG002
        """See `Engine.load`."""
        self.version = version
        found = self._digests.of(weights)
        self._held(version)
        return found

    async def generate(self, groups: Sequence[PromptGroup]) -> list[GroupCompletion]:
        """See `Engine.generate`."""
        version = self.version or 0
        await asyncio.sleep(self._seconds)
        self._calls += 1
        span = TokenSpan(0, len(_RESPONSE), version)
        return [
            GroupCompletion(group.key, tuple(Completion(_RESPONSE, _LOGPROBS, (span,), "length") for _ in group.seeds)) for group in groups
        ]

    async def release(self) -> None:
        """See `Engine.release`."""

    async def close(self) -> None:
        """See `Engine.close`."""


class StubSampler:
    """`TaskSampler` of one prompt, whose responses are single letters."""

    def __init__(self, record: RunRecord, worker: str, engine: StubEngine) -> None:
        self._record = record
        self._worker = worker
        self._engine = engine

    async def sample(self, task: Task, times: TaskTimes) -> list[Group]:
        """See `TaskSampler.sample`."""
        spec = self._record.spec
        prompts = [prompt_group(task, group, _PROMPT, spec.seed, spec.rollout.group_size) for group in task.groups]
        completions = await self._engine.generate(prompts)
        times.mark_sampled(completions)
        headers = [group_header(self._record.run_id, task, group, "?", self._worker, self._engine.name) for group in task.groups]
        return [
            group_message(header, prompt, completion, [_LETTERS[seed % len(_LETTERS)] for seed in prompt.seeds])
            for header, prompt, completion in zip(headers, prompts, completions, strict=True)
        ]


class StubRollout:
    """`RunServer`: the real worker loop around the stubs."""

    def __init__(self, settings: Settings, clients: WorkerClients, digests: Digests, held: HeldVersions, seconds: float) -> None:
        """A call of the engine takes `seconds`."""
        self._settings = settings
        self._clients = clients
        self._digests = digests
        self._held = held
        self._seconds = seconds

    async def serve_run(self, record: RunRecord) -> None:
        """See `RunServer.serve_run`."""
        joined, clients, presence = time.time(), self._clients, self._clients.heartbeat.presence
        versions = VersionLoader(clients.bus, clients.objects, clients.weight_store, record.run_id, self._settings.cache_dir)
        engine = StubEngine(
            self._digests, self._seconds, lambda version: self._held.add(record.run_id, version, joined, versions.known_for(version))
        )
        presence.engine = engine.name
        clients.heartbeat.show_preparing("")
        groups, sampler = GroupStore(clients.buffer, record.run_id), StubSampler(record, presence.worker, engine)
        async with versions.followed():
            parts = WorkerParts(clients.bus, groups, engine, versions, sampler, clients.heartbeat, run_metrics(record.run_id))
            await RolloutWorker(record, parts).serve()

    def release(self) -> None:
        """See `RunServer.release`."""

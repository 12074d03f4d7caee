"""Commits checkpoints: files, then the manifest, then the head, which is the commit point. The log is trimmed after that."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec

import torch

from gradbus.aio.tasks import cancel_and_wait
from gradbus.bus import EventLog
from gradbus.control.runs import RunRecord
from gradbus.errors import ModelError
from gradbus.objects import ObjectStore
from gradbus.spec import ModelSpec
from gradbus.telemetry import span
from gradbus.v1.weights_pb2 import CheckpointManifest, Origin
from gradbus_kernels.operators.base.dispatch import VARIABLE as KERNELS
from gradbus_trainer.checkpoints.state import Snapshot, TrainerState
from gradbus_trainer.versions.object_storage import store_files, until_complete, until_stored
from gradbus_trainer.versions.store_client import StoreClient


class CheckpointWriter:
    """Commits one run's checkpoints under one term, each while the steps after it are trained."""

    def __init__(
        self, store: StoreClient, objects: ObjectStore, events: EventLog, record: RunRecord, term: int, max_log_bytes: int
    ) -> None:
        """A checkpoint is due early once more than `max_log_bytes` of the log are trained, so that the log can be trimmed."""
        self._store = store
        self._objects = objects
        self._events = events
        self._record = record
        self._term = term
        self._max_log_bytes = max_log_bytes
        self._log_bytes = 0
        self._fingerprint = fingerprint(record.spec.trainer.threads)
        self._commit: asyncio.Task[None] | None = None

    def add_trained(self, log_bytes: int) -> None:
        """Counts bytes of the log that have been trained since the newest checkpoint."""
        self._log_bytes += log_bytes

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint follows `step` trained steps."""
        spec = self._record.spec
        return step % spec.checkpoint.every == 0 or step == spec.schedule.steps or self._log_bytes > self._max_log_bytes

    def begin(self, snapshot: Snapshot, state: TrainerState) -> None:
        """Commits in the background; `state` gets the manifest's digest. Call `settle` before."""
        self._log_bytes = 0
        self._commit = asyncio.create_task(self._run(snapshot, state), name=f"checkpoint {snapshot.state.step}")

    async def settle(self) -> None:
        """Waits for the commit under way. Raises its error."""
        if self._commit is not None:
            await self._commit

    async def close(self) -> None:
        """Ends the commit under way."""
        if self._commit is not None:
            await cancel_and_wait(self._commit)

    async def _run(self, snapshot: Snapshot, state: TrainerState) -> None:
        # The history of its steps comes first: after the commit no trainer trains these steps again and reports them.
        await self._events.wait_until_stored()
        step = snapshot.state.step
        with span("checkpoint", attributes={"gradbus.run.id": self._record.run_id, "gradbus.step": step}):
            digest = await commit(self._store, self._objects, snapshot, self._term, self._fingerprint, _origin(self._record.spec.model))
        for file in snapshot.optimizer:
            file.remove()
        state.previous = digest
        self._events.emit("checkpoint", f"checkpoint {step}", {"step": step, "digest": digest}, key=f"checkpoint:{step}")


async def commit(
    store: StoreClient, objects: ObjectStore, snapshot: Snapshot, term: int, fingerprint: Mapping[str, str], origin: Origin | None = None
) -> str:
    """Stores the optimiser's shards and moves the head; the manifest's digest.

    Raises ModelError if the version of the step has not been published: a fault of the caller.
    """
    state = snapshot.state
    if state.step not in state.versions:
        raise ModelError(f"version {state.step} must be published before its checkpoint; publish it first")
    weights = state.versions[state.step]
    what = f"the optimiser of step {state.step}"
    manifest = CheckpointManifest(
        run_id=weights.run_id,
        term=term,
        step=state.step,
        weights=weights,
        frontier=state.frontier.to_message(),
        pinned=[state.versions[step] for step in sorted(state.versions)],
        previous=state.previous,
        trained=state.trained,
        fingerprint=dict(fingerprint),
        controllers=state.controllers,
        origin=origin,
    )

    async def stored_and_committed() -> str:
        del manifest.optimizer[:]
        manifest.optimizer.extend(await until_stored(lambda: store_files(objects, snapshot.optimizer), what))
        return await store.commit(manifest)

    return await until_complete(stored_and_committed, what)


def _origin(model: ModelSpec) -> Origin | None:
    if model.lineage is None:
        return None
    parent = model.lineage.ancestors[0]
    return Origin(run_id=parent.run, step=parent.version, digest=parent.digest)


def fingerprint(threads: int) -> dict[str, str]:
    """The part of the environment that decides bits, besides the spec; that of the GPU if this process uses one."""
    found = {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "threads": str(threads),
        "ranks": os.environ.get("WORLD_SIZE", "1"),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
        "kernels": os.environ.get(KERNELS, ""),
    }
    return found | (_of_gpu() if torch.cuda.is_initialized() else {})  # type: ignore[no-untyped-call]


def _of_gpu() -> dict[str, str]:
    return {
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "cuda": torch.version.cuda or "",
        "triton": version("triton") if find_spec("triton") else "",
        "tf32": str(torch.backends.cuda.matmul.allow_tf32),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }

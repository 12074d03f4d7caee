"""The commit point: shards, then the manifest, then the head, and nothing is trimmed before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradbus.errors import ModelError
from gradbus.objects import ObjectStore
from gradbus.spec import WeightsSpec
from gradbus.telemetry import get_logger
from gradbus.v1.weights_pb2 import CheckpointManifest, WeightManifest
from gradbus_trainer.lazy_tensors import LazyTensors
from gradbus_trainer.learners.base import Learner
from gradbus_trainer.step.frontier import Frontier
from gradbus_trainer.versions.scratch import Scratch, TensorFile
from gradbus_trainer.versions.store_client import StoreClient
from gradbus_trainer.versions.weights_io import load_tensors, store_files, until_stored, until_whole

_log = get_logger(__name__)
_MASTER = ".master"


@dataclass(slots=True)
class TrainerState:
    """Where the fold stands. All of it is in a checkpoint's manifest."""

    step: int = 0
    frontier: Frontier = field(default_factory=Frontier)
    previous: str = ""
    """Digest of the newest committed manifest."""
    trained: dict[int, str] = field(default_factory=dict)
    """Record digest of each index consumed since `previous`."""
    versions: dict[int, WeightManifest] = field(default_factory=dict)
    """Published versions that a resume may have to sample with."""


async def restore(store: StoreClient, objects: ObjectStore, learner: Learner, scratch: Scratch, lag: int) -> TrainerState:
    """Brings the learner to the newest checkpoint, or leaves it at the base model."""
    response = await store.checkpoint()
    if response is None:
        return TrainerState()
    manifest = response.manifest
    stored = await load_tensors(objects, manifest.optimizer, scratch)
    masters = {name.removesuffix(_MASTER): tensor for name, tensor in stored.items() if name.endswith(_MASTER)}
    optimizer = {name: tensor for name, tensor in stored.items() if not name.endswith(_MASTER)}
    weights = masters or await load_tensors(objects, manifest.weights.shards, scratch)
    # Beside the event loop: copying a large model takes longer than the trainer's lease lasts unrenewed.
    await asyncio.to_thread(learner.restore, manifest.step, weights, optimizer)
    kept = {pinned.step: pinned for pinned in manifest.pinned if pinned.step >= manifest.step - lag}
    _log.info("resumed", step=manifest.step, digest=manifest.weights.digest)
    return TrainerState(manifest.step, Frontier.from_message(manifest.frontier), response.digest, {}, kept)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint is made of, taken between two steps."""

    state: TrainerState
    optimizer: Sequence[TensorFile]
    """Its state by parameter, and `<name>.master` where the published version is a rounded one."""

    @classmethod
    def of(cls, state: TrainerState, learner: Learner, scratch: Scratch, weights: WeightsSpec | None = None) -> Snapshot:
        """Writes what the next step would change, and starts a new list of trained groups. Raises StorageError, with all unchanged."""
        parts = [learner.optimizer_tensors()]
        if weights is not None and weights.dtype != "fp32":
            parts.append(_masters(learner.weights()))
        files = [scratch.write(part) for part in parts if part]
        frontier = Frontier.from_message(state.frontier.to_message())
        frozen = TrainerState(state.step, frontier, state.previous, state.trained, dict(state.versions))
        state.trained = {}
        return cls(frozen, files)


def _masters(weights: LazyTensors) -> LazyTensors:
    shapes = {f"{name}{_MASTER}": shape for name, shape in weights.shapes.items()}
    return LazyTensors(shapes, lambda name: weights[name.removesuffix(_MASTER)])


async def commit(store: StoreClient, objects: ObjectStore, snapshot: Snapshot, term: int, fingerprint: Mapping[str, str]) -> str:
    """Stores the optimiser's shards and moves the head; the manifest's digest.

    Raises ModelError if the version itself has not been published: that is a fault of the caller.
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
    )

    async def stored_and_committed() -> str:
        del manifest.optimizer[:]
        manifest.optimizer.extend(await until_stored(lambda: store_files(objects, snapshot.optimizer), what))
        return await store.commit(manifest)

    return await until_whole(stored_and_committed, what)
